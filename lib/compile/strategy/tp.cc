// Tensor parallelism: heads, hidden dims and vocabulary over tp. Column then row: the pending sums of
// o, down and embed are finished by redistribution, wherever their readers want them.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void tensor_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows) {
  auto column = [&](const std::string& state) {
    rows.push_back(strategy_state("tp", state, {{"tp"}, {}}));
  };
  auto row = [&](const std::string& state) {
    rows.push_back(strategy_state("tp", state, {{}, {"tp"}}));
  };
  for (const TensorOp& op : tensor_ops()) {
    rows.push_back(strategy_factors("tp", op.pattern, {{op.factor, {"tp"}}}));
  }
  column("model.embed_tokens.weight*");  // with its read copies on other stages
  column("lm_head.weight");
  column("model.layers.*.self_attn.q_proj.weight");
  column("model.layers.*.self_attn.q_b_proj.weight");
  column("model.layers.*.self_attn.kv_b_proj.weight");
  row("model.layers.*.self_attn.o_proj.weight");
  column("model.layers.*.mlp.gate_proj.weight");
  column("model.layers.*.mlp.up_proj.weight");
  row("model.layers.*.mlp.down_proj.weight");
  const std::string shared = "model.layers.*.mlp.shared_experts.";
  if (splits_shared_experts(options, graph)) {
    for (const TensorOp& op : shared_expert_ops()) {
      rows.push_back(strategy_factors("tp", op.pattern, {{op.factor, {"tp"}}}));
    }
    column(shared + "gate_proj.weight");
    column(shared + "up_proj.weight");
    row(shared + "down_proj.weight");
  } else {
    rows.push_back(strategy_state("tp", shared + "*_proj.weight", {}));
  }
  // The residual stream keeps its features whole.
  rows.push_back(strategy_factors("tp", "layers.*.residual", {{'C', {}}}));
}

}  // namespace moetrain
