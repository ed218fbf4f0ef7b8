// Finding the borders of a stage.
#include "compile/stages.h"

#include "base/error.h"
#include "graph/op.h"
#include "ops/basic.h"

namespace moetrain {

namespace {

/// Nodes that something outside the graph can notice: outputs, writes into states, and what leads there.
std::vector<char> live_nodes(const Graph& graph) {
  const size_t n = graph.nodes.size();
  std::vector<char> live(n, 0), in_state(n, 0);
  for (const NamedValue& o : graph.outputs) live[o.value.node] = 1;
  for (size_t i = 0; i < n; ++i) {
    const Node& node = graph.nodes[i];
    if (node.op == &ops::kState) in_state[i] = 1;
    if (node.op->alias == nullptr) continue;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const int shares = node.op->alias(node.attrs, static_cast<int>(k));
      if (shares >= 0 && in_state[node.inputs[shares].node]) in_state[i] = live[i] = 1;
    }
  }
  for (size_t i = n; i-- > 0;) {
    if (!live[i]) continue;
    for (Value v : graph.nodes[i].inputs) live[v.node] = 1;
  }
  return live;
}

}  // namespace

StageView view_of_stage(const Graph& graph, const Stages& stages, int stage) {
  const std::vector<char> live = live_nodes(graph);
  StageView view;
  view.place.assign(graph.nodes.size(), StageView::kAway);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!live[i]) continue;
    const Node& node = graph.nodes[i];
    const int index = static_cast<int>(i), mine = stages.stage_of(node.tag.stage);
    if (mine == stage) view.place[i] = StageView::kHere;
    for (Value v : node.inputs) {
      const Node& from = graph.node(v);
      const int home = stages.stage_of(from.tag.stage);
      if (from.inputs.empty() && from.op != &ops::kState) {
        if (mine != stage) continue;
        view.first_reader.emplace(v.node, index);
      } else if (home != mine && (home == stage || mine == stage)) {
        MT_CHECK(from.op != &ops::kState, "'", node.name, "' on stage ", mine, " reads state '",
                 from.name, "' of stage ", home);
        MT_CHECK(!graph.type(v).ragged, "rows of '", from.name, "' cross stages");
        if (mine == stage) {
          view.received.emplace(v, index);
        } else {
          view.sent[v].emplace(mine, index);
        }
      }
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!node.inputs.empty() || node.op == &ops::kState) continue;
    view.place[i] = view.first_reader.count(static_cast<int>(i)) ? StageView::kCopied
                                                                 : StageView::kAway;
  }
  return view;
}

}  // namespace moetrain
