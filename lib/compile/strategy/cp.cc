// Context parallelism: positions over cp. Attention reads keys and values of all positions, so they are
// gathered; masks go by position ids, so a balanced split is only a permutation of the inputs.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void context_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows) {
  for (const TensorOp& op : tensor_ops()) {
    rows.push_back(strategy_factors("cp", op.pattern, {{'s', {"cp"}}}));
  }
  if (splits_shared_experts(options, graph)) {
    for (const TensorOp& op : shared_expert_ops()) {
      rows.push_back(strategy_factors("cp", op.pattern, {{'s', {"cp"}}}));
    }
  }
  if (!options.tp_extend_ep) {
    for (const char* op : {"layers.*.moe.dispatch", "layers.*.moe.combine"}) {
      rows.push_back(strategy_factors("cp", op, {{'s', {"cp"}}}));
    }
  }
  if (options.sequence_parallel) return;  // sp splits the rest further
  for (const std::string& op : sequence_ops()) {
    rows.push_back(strategy_factors("cp", op, {{'s', {"cp"}}}));
  }
  rows.push_back(strategy_factors("cp", "layers.*.residual", {{'B', {"cp"}}}));
}

}  // namespace moetrain
