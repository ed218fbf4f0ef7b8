// Sequence parallelism: between the tensor-parallel products, positions are split over cp and tp, so
// that norms, latents, router and residual stream run on a tp-th of the rows.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void sequence_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows) {
  if (!options.sequence_parallel) return;
  for (const std::string& op : sequence_ops()) {
    rows.push_back(strategy_factors("sp", op, {{'s', {"cp", "tp"}}}));
  }
  rows.push_back(strategy_factors("sp", "layers.*.residual", {{'B', {"cp", "tp"}}}));
  if (splits_shared_experts(options, graph)) return;
  for (const TensorOp& op : shared_expert_ops()) {
    rows.push_back(strategy_factors("sp", op.pattern, {{'s', {"cp", "tp"}}, {op.factor, {}}}));
  }
}

}  // namespace moetrain
