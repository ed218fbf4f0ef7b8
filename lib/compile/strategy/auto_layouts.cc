// Enumerates uses of the tensor ranks, part by part, and keeps what the cost model likes best.
#include "compile/strategy/auto_layouts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "compile/strategy/row_makers.h"
#include "graph/op.h"

namespace moetrain {
namespace {

AutoChoice::Part part_of(const std::string& pattern) {
  const auto has = [&](const char* text) { return pattern.find(text) != std::string::npos; };
  if (has("attn")) return AutoChoice::kAttention;
  if (has("shared")) return AutoChoice::kShared;
  if (has(".mlp.")) return AutoChoice::kMlp;
  return AutoChoice::kVocabulary;
}

/// N of "model.layers.N.mlp", or -1.
int layer_of(const std::string& name) {
  const size_t at = name.find("layers.");
  return at == std::string::npos ? -1 : std::atoi(name.c_str() + at + 7);
}

double bytes_of(const Mesh& mesh, const Layout& layout, const Type& type) {
  int64_t parts = 1;
  for (const auto& axes : layout.dims) parts *= mesh.size(axes);
  double elements = 1;
  for (size_t d = type.ragged ? 1 : 0; d < type.shape.size(); ++d) {
    elements *= static_cast<double>(type.shape[d]);  // a ragged value's dim 1 counts all rows
  }
  return elements * static_cast<double>(size_of(type.dtype)) / static_cast<double>(parts);
}

/// Prices one propagated graph.
class Pricing {
 public:
  Pricing(const Graph& graph, const Mesh& mesh, const LayoutSearch& search,
          const ShardingResult& sharding)
      : graph_(graph), mesh_(mesh), search_(search), sharding_(sharding),
        planner_(mesh, search.links) {}

  LayoutPrice total() {
    LayoutPrice price;
    const auto users = users_of(graph_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const int n = static_cast<int>(i);
      const Node& node = graph_.nodes[i];
      const double copies = search_.repeats ? search_.repeats(layer_of(node.name)) : 1;
      const bool once = node.tag.phase == Phase::kUpdate;
      price.seconds += copies * (once ? 1 : search_.micro_batches) *
                       (work(n) + transfers(n) + token_rows(n));
      price.bytes += copies * kept(n, users[i]);
    }
    return price;
  }

 private:
  double work(int n) const {
    const Node& node = graph_.nodes[n];
    if (node.op->cost == nullptr || node.inputs.empty()) return 0;
    std::vector<Type> in;
    for (Value v : node.inputs) in.push_back(graph_.type(v));
    const Cost cost = node.op->cost(node.attrs, in, node.outputs);
    std::set<Axis> axes;
    for (const auto& [letter, list] : sharding_.nodes[n].factors.axes) {
      axes.insert(list.begin(), list.end());
    }
    constexpr double kFlops = 2e14;  // an accelerator's; only ratios matter here
    return (cost.matmul_flops / kFlops + cost.bytes / search_.links.memory_bandwidth) /
           mesh_.size(std::vector<Axis>(axes.begin(), axes.end()));
  }

  /// Redistributions of what node n reads; readers of one value that want the same share one.
  double transfers(int n) {
    double seconds = 0;
    const Node& node = graph_.nodes[n];
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const Value v = node.inputs[k];
      const Type& type = graph_.type(v);
      const Layout& from = sharding_.nodes[v.node].layouts.results[v.output];
      const Layout& to = sharding_.nodes[n].layouts.operands[k];
      if (type.ragged || from == to || !made_.insert({v, to, node.tag.phase}).second) continue;
      seconds += planner_.plan(type.shape, type.dtype, from, to).seconds;
    }
    return seconds;
  }

  /// Rows that cross to their experts, or back.
  double token_rows(int n) const {
    const Node& node = graph_.nodes[n];
    const Type* ragged = nullptr;
    const Layout* layout = nullptr;
    bool in = false, out = false;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!graph_.type(node.inputs[k]).ragged) continue;
      in = true;
      ragged = &graph_.type(node.inputs[k]);
      layout = &sharding_.nodes[n].layouts.operands[k];
    }
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (!node.outputs[r].ragged) continue;
      out = true;
      ragged = &node.outputs[r];
      layout = &sharding_.nodes[n].layouts.results[r];
    }
    if (in == out) return 0;
    const GroupShape group = group_shape(mesh_, search_.links, layout->dims[0]);
    const double far = group.nodes > 1 ? 1.0 - 1.0 / group.nodes : 0.0;
    const double near = 1.0 - 1.0 / group.ranks - far;
    const double bytes = bytes_of(mesh_, *layout, *ragged);
    return bytes * (far / search_.links.inter_bandwidth + near / search_.links.intra_bandwidth);
  }

  /// States, and forward values that backward reads.
  double kept(int n, const std::vector<int>& users) const {
    const Node& node = graph_.nodes[n];
    const bool state = std::string_view(node.op->name) == "state";
    const bool saved = node.tag.phase == Phase::kForward &&
                       std::any_of(users.begin(), users.end(), [&](int user) {
                         return graph_.nodes[user].tag.phase == Phase::kBackward;
                       });
    if (!state && !saved) return 0;
    double bytes = 0;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      bytes += bytes_of(mesh_, sharding_.nodes[n].layouts.results[r], node.outputs[r]);
    }
    return bytes;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const LayoutSearch& search_;
  const ShardingResult& sharding_;
  ReshardPlanner planner_;
  std::set<std::tuple<Value, Layout, Phase>> made_;
};

/// All choices that differ from `choice` in one part.
std::vector<AutoChoice> neighbours(const AutoChoice& choice, const ParallelOptions& options) {
  std::vector<AutoChoice> list;
  if (options.tensor > 1) {
    for (int part = 0; part < AutoChoice::kParts; ++part) {
      for (const auto use : {AutoChoice::kSplit, AutoChoice::kTokens, AutoChoice::kCopies}) {
        list.push_back(choice);
        list.back().use[part] = use;
      }
    }
    list.push_back(choice);
    list.back().stream_split = !choice.stream_split;
    list.push_back(choice);
    list.back().experts_whole = !choice.experts_whole;
  }
  if (options.zero != 0 && options.data * options.context > 1) {
    list.push_back(choice);
    list.back().zero = choice.zero == 3 ? 1 : 3;
  }
  std::erase(list, choice);
  return list;
}

}  // namespace

std::string to_string(const AutoChoice& choice) {
  const char* const parts[] = {"attention", "mlp", "shared experts", "vocabulary"};
  const char* const uses[] = {"weights split", "positions split", "copies"};
  std::string text;
  for (int p = 0; p < AutoChoice::kParts; ++p) {
    text += cat(parts[p], ": ", uses[choice.use[p]], ", ");
  }
  return cat(text, "stream ", choice.stream_split ? "split" : "whole", ", experts ",
             choice.experts_whole ? "whole" : "split", " over tp, zero ", choice.zero);
}

Rows chosen_rows(const AutoChoice& choice, const ParallelOptions& given, const Graph& graph) {
  ParallelOptions options = given;
  options.zero = choice.zero;
  options.sequence_parallel = choice.stream_split;
  options.tp_extend_ep = choice.experts_whole;
  Rows rows = options.user_rows;
  data_parallel(options, graph, rows);
  ParallelOptions plain = options;
  plain.sequence_parallel = false;  // so that all parts are in the list
  Rows split;
  tensor_parallel(plain, graph, split);
  for (LayoutRow row : split) {
    if (row.pattern == "layers.*.residual") {
      rows.push_back(row);
      continue;
    }
    const AutoChoice::Use use = choice.use[part_of(row.pattern)];
    if (row.kind == LayoutRow::Kind::kFactors) {
      if (use != AutoChoice::kSplit) row.factors.begin()->second.clear();
      row.factors['s'] = use == AutoChoice::kTokens ? Names{"cp", "tp"} : Names{"cp"};
    } else if (use != AutoChoice::kSplit) {
      row.out = {{}};
    }
    rows.push_back(row);
  }
  const Names positions = choice.stream_split ? Names{"cp", "tp"} : Names{"cp"};
  for (const std::string& op : sequence_ops()) {
    rows.push_back(strategy_factors("auto", op, {{'s', positions}}));
  }
  rows.push_back(strategy_factors("auto", "layers.*.residual", {{'B', positions}}));
  if (!choice.experts_whole) {
    for (const char* op : {"layers.*.moe.dispatch", "layers.*.moe.combine"}) {
      rows.push_back(strategy_factors("auto", op, {{'s', {"cp"}}}));
    }
  }
  expert_parallel(options, graph, rows);
  tp_extend_ep(options, graph, rows);
  zero_redundancy(options, graph, rows);
  for (LayoutRow& row : rows) {
    if (!row.locked) row.origin = "layouts auto";
  }
  return rows;
}

LayoutPrice price_of(const AutoChoice& choice, const ParallelOptions& options, const Graph& graph,
                     const LayoutSearch& search) {
  const Mesh mesh = build_mesh(options);
  const ShardingResult sharding =
      propagate(graph, mesh, search.links, chosen_rows(choice, options, graph));
  return Pricing(graph, mesh, search, sharding).total();
}

AutoChoice choose_layouts(const ParallelOptions& options, const Graph& graph,
                            const LayoutSearch& search) {
  constexpr double kImpossible = 1e300;
  std::map<AutoChoice, LayoutPrice> seen;
  auto price = [&](const AutoChoice& choice) {
    const auto at = seen.find(choice);
    if (at != seen.end()) return at->second;
    LayoutPrice p{kImpossible, kImpossible};
    try {
      p = price_of(choice, options, graph, search);
    } catch (const UserError&) {
      // shapes do not divide that way
    }
    return seen[choice] = p;
  };
  auto better = [&](const LayoutPrice& a, const LayoutPrice& b) {
    const double limit = search.memory_limit > 0 ? search.memory_limit : kImpossible / 2;
    const double over_a = std::max(0.0, a.bytes - limit), over_b = std::max(0.0, b.bytes - limit);
    if (over_a != over_b) return over_a < over_b;
    return a.seconds < b.seconds * (1 - 1e-6);
  };
  AutoChoice best;
  best.zero = options.zero;
  if (options.tensor == 1) best.stream_split = best.experts_whole = false;
  for (bool moved = true; moved;) {
    moved = false;
    for (const AutoChoice& other : neighbours(best, options)) {
      if (!better(price(other), price(best))) continue;
      best = other;
      moved = true;
      break;
    }
  }
  if (price(best).seconds == kImpossible) {
    price_of(best, options, graph, search);  // says what is wrong
  }
  return best;
}

}  // namespace moetrain
