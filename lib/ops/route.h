// The sigmoid router: group-limited top-k by biased scores, weights from raw scores, load counts, balance loss.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

struct RouteOptions {
  int64_t experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool normalise = true;
  double scaling = 1;
  int64_t valid_positions = 0;  ///< tokens with pos >= this are not routed (MTP layers: S - k); 0: all are
};

/// (logits[b, s, E] f32, bias[E] f32, pos[b, s] i32) ->
///   idx[b, s, K] i32 chosen experts ascending, -1 everywhere for a token that is not routed;
///   weight[b, s, K] f32 final weights in that order (0 for unrouted);
///   load[E] i64 chosen (token, slot) pairs per expert;
///   plain[b, E] f32 number of tokens of the sequence whose K largest raw scores include e;
///   mean_score[b, E] f32 sum over the sequence's routed tokens of s_e / sum_e' s_e'.
/// attrs: top_k, groups, top_groups, normalise, scaling, valid_positions. s = sigmoid(logits). Ties:
/// the lower expert (group) index wins. Formulas: tests/data/golden/README.md 3.6 and 4.2.
extern const OpDef kRoute;
/// (dweight[b, s, K], logits, idx, pos [, dmean_score[b, E]]) -> dlogits[b, s, E] f32. attrs as kRoute.
extern const OpDef kRouteGrad;

/// (plain[b, E], mean_score[b, E], scale[] f32) -> loss[] f32 =
/// scale * coefficient * sum_b sum_e plain * mean_score, coefficient = alpha E / (K T) / T.
/// attrs: coefficient. `scale` is 1 / (sequences of the global batch).
extern const OpDef kBalanceLoss;
/// (plain, scale) -> dmean_score[b, E].
extern const OpDef kBalanceLossGrad;

struct Routing {
  Value idx, weight, load, plain, mean_score;
};
Routing route(Graph& g, Value logits, Value bias, Value pos, const RouteOptions& options,
              const std::string& name);
Value balance_loss(Graph& g, Value plain, Value mean_score, Value scale, double coefficient,
                   const std::string& name);

}  // namespace moetrain::ops
