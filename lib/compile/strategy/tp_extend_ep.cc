// TP_EXTEND_EP: whole experts over ep and tp, instead of every expert's hidden dim over tp. Each tp rank
// dispatches its own tokens; the gather before and the scatter after the experts vanish.
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"

namespace moetrain {

void tp_extend_ep(const ParallelOptions& options, const Graph&, Rows& rows) {
  if (!options.tp_extend_ep) return;
  for (const char* op : {"layers.*.moe.dispatch", "layers.*.moe.combine"}) {
    rows.push_back(strategy_factors("tp_extend_ep", op, {{'e', {"ep", "tp"}}, {'s', {"cp", "tp"}}}));
  }
  rows.push_back(strategy_factors("tp_extend_ep", "layers.*.moe.experts.*",
                                  {{'e', {"ep", "tp"}}, {'n', {}}, {'k', {}}}));
  rows.push_back(strategy_state("tp_extend_ep", "model.layers.*.mlp.experts.*_proj.weight",
                                {{"ep", "tp"}, {}, {}}));
}

}  // namespace moetrain
