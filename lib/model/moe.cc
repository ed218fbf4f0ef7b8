// The mixture-of-experts layer: sigmoid router, routed experts, shared experts (arXiv:2412.19437 2.1.2).
#include "model/builder.h"
#include "ops/basic.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/route.h"
#include "ops/swiglu.h"

namespace moetrain {

Value Builder::experts(Value normed_bsd, int layer, int64_t valid_positions) {
  const std::string p = cat("model.layers.", layer, ".mlp.");
  // The router works in float32 whatever the compute dtype.
  const Value logits_bse = ops::matmul(g, normed_bsd, param(p + "gate.weight"), "moe.router");
  const Value x_bsd = ops::cast(g, normed_bsd, options.compute);
  ops::RouteOptions route;
  route.experts = m.n_routed_experts;
  route.top_k = m.num_experts_per_tok;
  route.groups = m.n_group;
  route.top_groups = m.topk_group;
  route.normalise = m.norm_topk_prob;
  route.scaling = m.routed_scaling_factor;
  route.valid_positions = valid_positions;
  const ops::Routing r = ops::route(g, logits_bse, param(p + "gate.e_score_correction_bias"),
                                    pos(), route, "moe.route");
  routed.push_back({layer, valid_positions, r.idx, r.weight, r.load, r.plain, r.mean_score});
  if (options.dump) {
    g.mark_output(cat("route.", layer, ".topk_idx"), r.idx);
    g.mark_output(cat("route.", layer, ".topk_weight"), r.weight);
  }

  const auto d = ops::dispatch(g, x_bsd, r.idx, m.n_routed_experts, "moe.dispatch");
  const Value gate = ops::grouped_matmul(g, d.rows, param(p + "experts.gate_proj.weight"), d.plan,
                                         "moe.experts.gate");
  const Value up = ops::grouped_matmul(g, d.rows, param(p + "experts.up_proj.weight"), d.plan,
                                       "moe.experts.up");
  const Value hidden = ops::swiglu(g, gate, up, "moe.experts.act");
  const Value rows = ops::grouped_matmul(g, hidden, param(p + "experts.down_proj.weight"), d.plan,
                                         "moe.experts.down");
  const Value y = ops::combine(g, rows, d.plan, r.weight, r.idx, DType::kF32, "moe.combine");
  if (m.n_shared_experts == 0) return y;
  const Value shared = feed_forward(x_bsd, p + "shared_experts.", "moe.shared");
  return ops::add(g, y, shared, "moe.sum");
}

}  // namespace moetrain
