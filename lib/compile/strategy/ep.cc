// Expert parallelism: experts over ep, and (unless tp_extend_ep keeps them whole) their hidden dim over tp.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void expert_parallel(const ParallelOptions& options, const Graph&, Rows& rows) {
  if (options.tp_extend_ep) return;
  for (const char* op : {"layers.*.moe.dispatch", "layers.*.moe.combine"}) {
    rows.push_back(strategy_factors("ep", op, {{'e', {"ep"}}}));
  }
  const std::string ops = "layers.*.moe.experts.";
  rows.push_back(strategy_factors("ep", ops + "gate", {{'e', {"ep"}}, {'n', {"tp"}}}));
  rows.push_back(strategy_factors("ep", ops + "up", {{'e', {"ep"}}, {'n', {"tp"}}}));
  rows.push_back(strategy_factors("ep", ops + "down", {{'e', {"ep"}}, {'k', {"tp"}}}));
  const std::string states = "model.layers.*.mlp.experts.";
  rows.push_back(strategy_state("ep", states + "gate_proj.weight", {{"ep"}, {"tp"}, {}}));
  rows.push_back(strategy_state("ep", states + "up_proj.weight", {{"ep"}, {"tp"}, {}}));
  rows.push_back(strategy_state("ep", states + "down_proj.weight", {{"ep"}, {}, {"tp"}}));
}

}  // namespace moetrain
