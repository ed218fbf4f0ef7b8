// Numbering of classes, types and layouts, and cached prices.
#include "compile/shard/problem.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr double kFlops = 2e14;  // only ranks candidates against each other

std::string key_of(const FactorAxes& factors) {
  std::string key;
  for (const auto& [letter, axes] : factors.axes) {
    if (axes.empty()) continue;
    key += letter;
    for (Axis a : axes) key += static_cast<char>(a + 1);
    key += '\xff';
  }
  key += static_cast<char>(factors.linear_group + 2);
  for (Axis a : factors.partial) key += static_cast<char>(a + 1);
  return key;
}

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

/// All axes that split work (not those of a pending sum passed through).
std::vector<Axis> split_axes(const FactorAxes& factors) {
  std::set<Axis> axes;
  for (const auto& [letter, list] : factors.axes) axes.insert(list.begin(), list.end());
  return {axes.begin(), axes.end()};
}

/// Gradient of an operand: pending over every axis of the op that the operand is not split on, but
/// whole where the operand itself is a pending sum.
Layout operand_dual(const Layout& operand, const FactorAxes& factors) {
  Layout dual = operand;
  dual.partial.clear();
  std::set<Axis> axes;
  for (const auto& [letter, list] : factors.axes) axes.insert(list.begin(), list.end());
  axes.insert(factors.partial.begin(), factors.partial.end());
  for (const auto& dim : operand.dims) {
    for (Axis a : dim) axes.erase(a);
  }
  for (Axis a : operand.partial) axes.erase(a);
  dual.partial.assign(axes.begin(), axes.end());
  return dual;
}

}  // namespace

Problem::Problem(const Graph& graph, const Mesh& mesh, const LinkModel& links)
    : graph_(graph), planner_(mesh, links) {
  const size_t n = graph.nodes.size();
  node_class_.resize(n);
  uses_.resize(n);
  gradients_.resize(n);
  differentiable_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    const Node& node = graph.nodes[i];
    uses_[i].resize(node.outputs.size());
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const Value v = node.inputs[k];
      uses_[v.node][v.output].push_back({static_cast<int>(i), static_cast<int>(k)});
      if (node.op->vjp != nullptr && node.tag.phase == Phase::kForward &&
          is_float(graph.type(v).dtype)) {
        differentiable_[i] |= differentiable_[v.node];
      }
    }
    node_class_[i] = class_number(static_cast<int>(i));
    if (is_state(static_cast<int>(i)) && is_float(node.outputs[0].dtype)) differentiable_[i] = 1;
    if (node.forward >= 0) gradients_[node.forward].push_back(static_cast<int>(i));
  }
}

bool Problem::is_state(int node) const {
  return std::string_view(graph_.nodes[node].op->name) == "state";
}

bool Problem::touches_ragged(int node) const {
  const Rule& rule = op_class(node).rule;
  return any(rule.ragged_operands) || any(rule.ragged_results);
}

int Problem::type_number(const Type& type) {
  const auto [at, fresh] = type_numbers_.emplace(
      std::make_tuple(type.dtype, type.shape, type.ragged), static_cast<int>(types_.size()));
  if (fresh) types_.push_back(type);
  return at->second;
}

int Problem::class_number(int n) {
  const Node& node = graph_.nodes[n];
  std::vector<Type> inputs;
  std::vector<int> operand_types, result_types;
  for (Value v : node.inputs) {
    inputs.push_back(graph_.type(v));
    operand_types.push_back(type_number(inputs.back()));
  }
  for (const Type& type : node.outputs) result_types.push_back(type_number(type));
  MT_CHECK(node.op->rule != nullptr, "op ", node.op->name, " has no sharding rule");
  std::string key = node.op->name;
  key += '|' + node.op->rule(node.attrs, inputs) + '|';
  for (int t : operand_types) key += std::to_string(t) + ',';
  key += '>';
  for (int t : result_types) key += std::to_string(t) + ',';
  const auto [at, fresh] = class_numbers_.emplace(key, static_cast<int>(classes_.size()));
  if (fresh) {
    OpClass c;
    c.rule = rule_of(graph_, n);
    c.sizes = factor_sizes(graph_, n, c.rule);
    c.operand_types = std::move(operand_types);
    c.result_types = std::move(result_types);
    if (node.op->cost != nullptr) c.cost = node.op->cost(node.attrs, inputs, node.outputs);
    classes_.push_back(std::move(c));
  }
  return at->second;
}

int Problem::layout_number(const Layout& layout) {
  const auto [at, fresh] = layout_numbers_.emplace(layout, static_cast<int>(layouts_.size()));
  if (fresh) layouts_.push_back(layout);
  return at->second;
}

const Decision* Problem::decision(int number, const FactorAxes& factors) {
  auto& slot = decisions_[{number, key_of(factors)}];
  if (slot) return slot->operands.empty() && slot->results.empty() ? nullptr : slot.get();
  slot = std::make_unique<Decision>();
  const OpClass& c = classes_[number];
  if (!assignment_fault(mesh(), c.rule, c.sizes, factors).empty()) return nullptr;
  slot->factors = factors;
  std::erase_if(slot->factors.axes, [](const auto& entry) { return entry.second.empty(); });
  slot->layouts = layouts_for(mesh(), c.rule, factors);
  auto add_memory = [&](const Layout& layout, int t) {
    double bytes = static_cast<double>(size_of(types_[t].dtype)) *
                   static_cast<double>(numel(types_[t].shape));
    for (const auto& dim : layout.dims) bytes /= mesh().size(dim);
    slot->memory += bytes;
  };
  for (size_t i = 0; i < slot->layouts.operands.size(); ++i) {
    const Layout& layout = slot->layouts.operands[i];
    slot->operands.push_back(layout_number(layout));
    slot->operand_duals.push_back(layout_number(operand_dual(layout, factors)));
    add_memory(layout, c.operand_types[i]);
  }
  for (size_t r = 0; r < slot->layouts.results.size(); ++r) {
    Layout dual = slot->layouts.results[r];
    slot->results.push_back(layout_number(dual));
    add_memory(dual, c.result_types[r]);
    dual.partial.clear();
    slot->result_duals.push_back(layout_number(dual));
  }
  slot->compute_seconds =
      (c.cost.matmul_flops / kFlops + c.cost.bytes / planner_.links().memory_bandwidth) /
      mesh().size(split_axes(factors));
  return slot.get();
}

const ReshardPlan& Problem::plan(int type, int from, int to) {
  return planner_.plan(types_[type].shape, types_[type].dtype, layouts_[from], layouts_[to]);
}

Problem::Edge Problem::edge(int type, int from, int to) {
  if (from == to) return {};
  const uint64_t key = static_cast<uint64_t>(type) << 42 | static_cast<uint64_t>(from) << 21 |
                       static_cast<uint64_t>(to);
  const auto [at, fresh] = edges_.try_emplace(key);
  if (!fresh) return at->second;
  Edge edge;
  for (const ReshardStep& step : plan(type, from, to).steps) {
    const bool local = step.kind == ReshardStep::Kind::kSlice ||
                       step.kind == ReshardStep::Kind::kKeepOnFirst;
    (local ? edge.local_seconds : edge.seconds) += step.seconds;
  }
  return edges_[key] = edge;
}

int Problem::waiting_dual(int own, int state) {
  Layout dual = layouts_[own];
  std::erase_if(dual.partial, [&](Axis a) {
    const auto& dims = layouts_[state].dims;
    return std::none_of(dims.begin(), dims.end(), [&](const auto& dim) {
      return std::find(dim.begin(), dim.end(), a) != dim.end();
    });
  });
  return layout_number(dual);
}

double Problem::finish_seconds(int type, int number, int dual, bool gradient) {
  if (layouts_[number].partial.empty()) return 0;
  const auto [at, fresh] = finish_.try_emplace({type, number, dual, gradient});
  if (!fresh) return at->second;
  const Layout layout = layouts_[number];
  Layout finished = layout;
  finished.partial.clear();
  double best = edge(type, number, layout_number(finished)).seconds;
  for (size_t d = 0; d < finished.dims.size(); ++d) {
    Layout scattered = finished;
    scattered.dims[d].insert(scattered.dims[d].end(), layout.partial.begin(), layout.partial.end());
    if (types_[type].shape[d] % mesh().size(scattered.dims[d]) != 0) continue;
    const int to = layout_number(scattered);
    double seconds = edge(type, number, to).seconds;
    if (gradient) seconds += edge(type, to, dual).seconds;
    best = std::min(best, seconds);
  }
  return finish_[{type, number, dual, gradient}] = best;
}

}  // namespace moetrain
