// Recomputation as cloned nodes.
#include "compile/recompute.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pad.h"
#include "ops/swiglu.h"

namespace moetrain {

namespace {

bool cheap(const Node& node) {
  static const std::array<const OpDef*, 9> kCheap = {&ops::kRmsNorm, &ops::kSwiglu, &ops::kCast,
                                                     &ops::kRope,    &ops::kSplit,  &ops::kReshape,
                                                     &ops::kConcat,  &ops::kPad,    &ops::kCrop};
  if (std::find(kCheap.begin(), kCheap.end(), node.op) != kCheap.end()) return true;
  // Wide results of narrow latents: little work for much memory.
  const std::string_view name = node.name;
  return node.op == &ops::kMatmul && (name.ends_with("attn.q_b") || name.ends_with("attn.kv_b"));
}

bool inside_layer(const Node& node) {
  static const std::array<const OpDef*, 13> kInside = {
      &ops::kRmsNorm, &ops::kSwiglu, &ops::kCast,   &ops::kRope,      &ops::kSplit,        &ops::kReshape,
      &ops::kPad,     &ops::kCrop,
      &ops::kConcat,  &ops::kMatmul, &ops::kAdd,    &ops::kAttention, &ops::kGroupedMatmul};
  return std::find(kInside.begin(), kInside.end(), node.op) != kInside.end();
}

class RecomputePass {
 public:
  RecomputePass(const Graph& graph, const ShardingResult& sharding, RecomputeMode mode)
      : old_(graph), sharding_(sharding), mode_(mode), copies_(graph.nodes.size(), -1),
        clones_(graph.nodes.size(), -1) {}

  Recomputed run() {
    for (int i = 0; i < static_cast<int>(old_.nodes.size()); ++i) {
      const Node& node = old_.nodes[i];
      if (may_read_clones(node)) {
        for (Value v : node.inputs) {
          if (runs_again(v.node, node.tag.layer)) clone(v.node);
        }
      }
      copies_[i] = append(i, may_read_clones(node) ? node.tag.layer : -1);
    }
    for (Node& node : out_.graph.nodes) {
      if (node.forward >= 0) node.forward = copies_[node.forward];
    }
    for (const NamedValue& o : old_.outputs) {
      out_.graph.outputs.push_back({o.name, {copies_[o.value.node], o.value.output}});
    }
    out_.sharding.reshard_seconds = sharding_.reshard_seconds;
    out_.sharding.notes = sharding_.notes;
    return std::move(out_);
  }

 private:
  /// combine_grad reads rows that came back over the links; they are kept.
  static bool may_read_clones(const Node& node) {
    return node.tag.phase == Phase::kBackward && node.tag.layer >= 0 &&
           node.op != &ops::kCombineGrad;
  }

  /// Only nodes of the reader's own layer: what crosses layers is kept.
  bool runs_again(int index, int layer) const {
    const Node& node = old_.nodes[index];
    if (node.tag.phase != Phase::kForward || node.tag.layer != layer) return false;
    return mode_ == RecomputeMode::kSelective ? cheap(node) : inside_layer(node);
  }

  Value mapped(Value v, int clones_of_layer) const {
    const bool clone = clones_of_layer >= 0 && clones_[v.node] >= 0 &&
                       runs_again(v.node, clones_of_layer);
    return {clone ? clones_[v.node] : copies_[v.node], v.output};
  }

  void clone(int index) {
    if (clones_[index] >= 0) return;
    const int layer = old_.nodes[index].tag.layer;
    for (Value v : old_.nodes[index].inputs) {
      if (runs_again(v.node, layer)) clone(v.node);
    }
    clones_[index] = append(index, layer);
    Node& made = out_.graph.nodes.back();
    made.tag.phase = Phase::kBackward;
    made.name += ".again";
    ++out_.cloned;
  }

  int append(int index, int clones_of_layer) {
    Node node = old_.nodes[index];
    for (Value& v : node.inputs) v = mapped(v, clones_of_layer);
    out_.graph.nodes.push_back(std::move(node));
    out_.sharding.nodes.push_back(sharding_.nodes[index]);
    return static_cast<int>(out_.graph.nodes.size()) - 1;
  }

  const Graph& old_;
  const ShardingResult& sharding_;
  const RecomputeMode mode_;
  Recomputed out_;
  std::vector<int> copies_, clones_;  // old node -> new node
};

}  // namespace

Recomputed recompute(const Graph& graph, const ShardingResult& sharding, RecomputeMode mode) {
  return RecomputePass(graph, sharding, mode).run();
}

}  // namespace moetrain
