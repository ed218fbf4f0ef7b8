// The walk over the global graph that makes one rank's graph.
#include "compile/partition.h"

#include "base/error.h"
#include "compile/partitioner.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/pipe.h"

namespace moetrain {

Partitioner::Partitioner(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
                         const LinkModel& links, int rank, std::optional<Transport> dispatch,
                         const Stages& stages)
    : graph_(graph), sharding_(sharding), mesh_(mesh), links_(links), rank_(rank),
      dispatch_(dispatch), stages_(stages) {
  if (stages.count > 1) view_ = view_of_stage(graph, stages, mesh.first_rank / mesh.size());
}

int Partitioner::append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, int like,
                        const std::string& name) {
  const auto reader = view_.first_reader.find(like);  // a copied leaf stands where it is read
  out_.graph.tag = graph_.nodes[reader == view_.first_reader.end() ? like : reader->second].tag;
  const int node = out_.graph.append(op, std::move(inputs), std::move(attrs), name);
  return node;
}

Attrs Partitioner::local_attrs(int index) const {
  const Node& node = graph_.nodes[index];
  Attrs attrs = node.attrs;
  const NodeLayouts& layouts = sharding_.nodes[index].layouts;
  if (attrs.has("shape")) {
    attrs.set("shape", local_shape(mesh_, layouts.results[0], node.outputs[0]));
  }
  const bool looks_up = node.op == &ops::kEmbedding || node.op == &ops::kEmbeddingGrad;
  if (looks_up) {
    const bool forward = node.op == &ops::kEmbedding;
    const Layout& table = forward ? layouts.operands[0] : layouts.results[0];
    const Type& type = forward ? graph_.type(node.inputs[0]) : node.outputs[0];
    const Shape local = local_shape(mesh_, table, type);
    attrs.set("vocab_begin", local[0] * mesh_.index_along(rank_, table.dims[0]));
    if (!forward) attrs.set("vocab", local[0]);
  }
  return attrs;
}

Value Partitioner::operand(int node, int index) {
  const Value v = graph_.nodes[node].inputs[index];
  return in_layout(v, demanded(node, index), node, graph_.nodes[node].name);
}

void Partitioner::emit_outputs(int index) {
  for (const NamedValue& output : graph_.outputs) {
    if (output.value.node != index) continue;
    const Type& type = graph_.type(output.value);
    MT_CHECK(!type.ragged, "output '", output.name, "' is ragged");
    Value whole = in_layout(output.value, replicated(type.shape.size()), index, output.name);
    const OpDef* op = out_.graph.node(whole).op;
    if (op == &ops::kState || op->alias) {  // later in-place updates must not reach the reader
      whole = add(ops::kKeepOnFirst, {whole}, {{"keep", int64_t{1}}}, index, output.name);
    }
    out_.graph.mark_output(output.name, whole);
  }
}

void Partitioner::place(int index) {
  const Node& node = graph_.nodes[index];
  const NodeLayouts& layouts = sharding_.nodes[index].layouts;
  MT_CHECK(layouts.operands.size() == node.inputs.size() &&
               layouts.results.size() == node.outputs.size(),
           "layouts of '", node.name, "'");
  if (!localize(index)) {
    std::vector<Value> inputs;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const auto bundle = bundles_.find(node.inputs[k]);
      inputs.push_back(bundle != bundles_.end() ? bundle->second.offsets
                                                : operand(index, static_cast<int>(k)));
    }
    const int local = append(*node.op, std::move(inputs), local_attrs(index), index, node.name);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      define({index, static_cast<int>(k)}, {local, static_cast<int>(k)});
      const Type& type = out_.graph.nodes[local].outputs[k];
      MT_CHECK(type.ragged || type.shape == local_shape(mesh_, layouts.results[k], node.outputs[k]),
               "'", node.name, "' result ", k, " is ", to_string(type), " locally; its layout ",
               to_string(mesh_, layouts.results[k]), " of ", to_string(node.outputs[k]),
               " wants another shape");
    }
    if (node.op == &ops::kState) {
      out_.states.push_back({node.name, {local, 0}, layouts.results[0], node.outputs[0]});
    } else if (node.op == &ops::kInput) {
      out_.inputs.push_back({node.name, {local, 0}, layouts.results[0], node.outputs[0]});
    }
  }
  emit_outputs(index);
}

/// Messages from one segment of a chunk to one of another are a stream of their own, so that both ends
/// agree on the order whatever else the two ranks exchange.
Attrs Partitioner::stream(int from_node, int to_node) const {
  const Tag from = graph_.nodes[from_node].tag, to = graph_.nodes[to_node].tag;
  auto letter = [](Phase p) {
    return p == Phase::kForward ? "F" : p == Phase::kBackward ? "B" : "U";
  };
  auto rank_on = [&](int chunk) -> int64_t {
    return (rank_ - mesh_.first_rank) + stages_.stage_of(chunk) * mesh_.size();
  };
  return Attrs{{"group", cat("pp ", letter(from.phase), from.stage, ">", letter(to.phase), to.stage)},
               {"ranks", std::vector<int64_t>{rank_on(from.stage), rank_on(to.stage)}}};
}

void Partitioner::place_on_stage(int index) {
  const Node& node = graph_.nodes[index];
  if (view_.place[index] != StageView::kAway) place(index);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const Value v{index, static_cast<int>(k)};
    if (const auto reader = view_.received.find(v); reader != view_.received.end()) {
      Attrs attrs = stream(index, reader->second);
      attrs.set("dtype", static_cast<int64_t>(node.outputs[k].dtype));
      attrs.set("shape", local_shape(mesh_, produced(v), node.outputs[k]));
      define(v, add(ops::kRecv, {}, attrs, reader->second, node.name + ".recv"));
    }
    const auto sent = view_.sent.find(v);
    if (sent == view_.sent.end()) continue;
    for (const auto& [stage, reader] : sent->second) {
      append(ops::kSend, {made_.at(v)}, stream(index, reader), index, node.name + ".send");
    }
  }
}

LocalGraph Partitioner::run() {
  MT_CHECK(sharding_.nodes.size() == graph_.nodes.size(), "sharding of another graph");
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (stages_.count == 1) {
      place(static_cast<int>(i));
    } else {
      place_on_stage(static_cast<int>(i));
    }
  }
  return std::move(out_);
}

LocalGraph partition(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
                     const LinkModel& links, int rank, std::optional<Transport> dispatch,
                     const Stages& stages) {
  return Partitioner(graph, sharding, mesh, links, rank, dispatch, stages).run();
}

}  // namespace moetrain
