// Cutting one rank's graph into segments.
#include "compile/segments.h"

#include "base/error.h"
#include "graph/op.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/pipe.h"

namespace moetrain {

namespace {

bool leaf(const Node& node) { return node.op == &ops::kInput || node.op == &ops::kState; }

/// Marks what the chunk before (or, on the first chunk, the embedding's gradient) waits for.
class InputGradients {
 public:
  InputGradients(const Graph& graph, const std::vector<int>& backward, int chunk)
      : graph_(graph), wanted_(graph.nodes.size(), 0), mine_(graph.nodes.size(), 0) {
    for (int n : backward) mine_[n] = 1;
    bool leaves_chunk = false;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      if (mine_[i] && node.op == &ops::kSend) {
        wanted_[i] = 1;
        leaves_chunk = true;
      }
      if (mine_[i] || node.tag.phase != Phase::kBackward || node.tag.stage == chunk) continue;
      for (Value v : node.inputs) {
        if (!mine_[v.node]) continue;
        wanted_[v.node] = 1;
        leaves_chunk = true;
      }
    }
    for (int n : backward) {
      if (leaves_chunk || graph.nodes[n].op != &ops::kEmbeddingGrad) continue;
      for (Value v : graph.nodes[n].inputs) wanted_[v.node] = mine_[v.node];
    }
    for (size_t k = backward.size(); k-- > 0;) {
      if (!wanted_[backward[k]]) continue;
      for (Value v : graph.nodes[backward[k]].inputs) wanted_[v.node] |= mine_[v.node];
    }
  }
  bool operator()(int node) const { return wanted_[node] != 0; }

 private:
  const Graph& graph_;
  std::vector<char> wanted_, mine_;
};

}  // namespace

std::vector<SegmentNodes> cut_segments(const Graph& graph, const Stages& stages,
                                       bool split_weights, bool whole) {
  std::vector<SegmentNodes> out;
  auto add = [&](const std::string& name, int chunk, std::vector<int> nodes) {
    if (!nodes.empty()) out.push_back({name, chunk, std::move(nodes)});
  };
  // Nodes of one phase and chunk; any chunk where there is one stage.
  auto nodes_of = [&](Phase phase, int local) {
    std::vector<int> nodes;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      if (leaf(node) || node.tag.phase != phase) continue;
      if (local < 0 || stages.local(node.tag.stage) == local) nodes.push_back(static_cast<int>(i));
    }
    return nodes;
  };
  if (whole) {
    std::vector<int> step;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!leaf(graph.nodes[i]) && graph.nodes[i].tag.phase != Phase::kUpdate) {
        step.push_back(static_cast<int>(i));
      }
    }
    add("step", 0, std::move(step));
  } else {
    for (int c = 0; c < stages.per_stage; ++c) add(cat("F.", c), c, nodes_of(Phase::kForward, c));
    for (int c = stages.per_stage; c-- > 0;) {
      const std::vector<int> backward = nodes_of(Phase::kBackward, c);
      if (!split_weights || backward.empty()) {
        add(cat("B.", c), c, backward);
        continue;
      }
      const InputGradients wanted(graph, backward, graph.nodes[backward[0]].tag.stage);
      std::vector<int> first, second;
      for (int n : backward) (wanted(n) ? first : second).push_back(n);
      add(cat("B.", c), c, std::move(first));
      add(cat("W.", c), c, std::move(second));
    }
  }
  add("update", -1, nodes_of(Phase::kUpdate, -1));
  return out;
}

}  // namespace moetrain
