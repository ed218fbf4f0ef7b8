// Sums of scalars are finished once.
#include "compile/late_sums.h"

#include <algorithm>
#include <set>

#include "ops/basic.h"

namespace moetrain {

int finish_scalar_sums_late(const Graph& graph, ShardingResult& sharding) {
  int changed = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if ((node.op != &ops::kAddN && node.op != &ops::kAdd) || !node.outputs[0].shape.empty()) {
      continue;
    }
    NodeSharding& sum = sharding.nodes[i];
    if (sum.anchored) continue;
    std::set<Axis> axes;
    for (Value v : node.inputs) {
      const Layout& term = sharding.nodes[v.node].layouts.results[v.output];
      axes.insert(term.partial.begin(), term.partial.end());
    }
    const std::vector<Axis> pending(axes.begin(), axes.end());
    if (pending == sum.layouts.results[0].partial) continue;
    for (Layout& operand : sum.layouts.operands) operand.partial = pending;
    sum.layouts.results[0].partial = pending;
    sum.factors.partial = pending;
    sum.factors.linear_group = pending.empty() ? -1 : 0;
    sum.origin = "scalars summed before they are reduced";
    ++changed;
  }
  return changed;
}

}  // namespace moetrain
