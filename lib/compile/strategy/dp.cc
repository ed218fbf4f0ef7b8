// Data parallelism: sequences over dp; parameters whole unless another strategy says otherwise.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void data_parallel(const ParallelOptions&, const Graph&, Rows& rows) {
  for (const char* input : {"tokens.*", "labels.*", "valid.*", "pos", "doc_start"}) {
    rows.push_back(strategy_state("dp", input, {{"dp"}, {"cp"}}));
  }
  for (const char* scalar : {"scale.*", "hyper", "bias_speed"}) {
    rows.push_back(strategy_state("dp", scalar, {}));
  }
  for (const std::string& op : sequence_ops()) {
    rows.push_back(strategy_factors("dp", op, {{'b', {"dp"}}}));
  }
  for (const auto* ops : {&tensor_ops(), &shared_expert_ops()}) {
    for (const TensorOp& op : *ops) {
      rows.push_back(strategy_factors("dp", op.pattern, {{'b', {"dp"}}}));
    }
  }
  for (const char* op : {"layers.*.moe.dispatch", "layers.*.moe.combine", "layers.*.balance"}) {
    rows.push_back(strategy_factors("dp", op, {{'b', {"dp"}}}));
  }
  rows.push_back(strategy_factors("dp", "layers.*.residual", {{'A', {"dp"}}}));
  for (const char* state : {"model.*", "lm_head*"}) {
    rows.push_back(strategy_state("dp", state, {}));
  }
}

}  // namespace moetrain
