// Token dispatch to experts, grouped matrix products over ragged rows, and combine.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

// A dispatch plan is one i32 tensor that travels beside the ragged rows:
//   [0, E]            row offsets of the experts: rows of expert e are [offset[e], offset[e+1])
//   [E+1, E+1+T*K)    for row r < offset[E]: its source slot token * K + slot (expert-major, then by
//                     token, then slot)
// with E local experts and T local tokens. (On a graph whose experts are spread over ranks the
// partitioner gives the plan further parts behind the offsets; ops on rows read only the offsets.)

/// (x[b, s, d], idx[b, s, K] i32) -> rows ragged[E, b*s*K, d] in x's dtype, plan i32. attr experts.
/// Slots with idx < 0 make no row. Rule: `local e`.
extern const OpDef kDispatch;
/// (drows, plan, idx) -> dx[b, s, d]: sum over a token's rows in slot order, float. attr experts.
extern const OpDef kDispatchGrad;
/// (yrows, plan, weight[b, s, K] f32, idx) -> y[b, s, d] = sum over slots weight * row, in slot order,
/// float accumulation. attrs: experts, optionally dtype (of y; yrows' without it). Rule: `local e`.
extern const OpDef kCombine;
/// (dy[b, s, d], plan, weight, idx, yrows) -> dyrows (= weight * dy[token]), dweight[b, s, K] f32
/// (= <dy[token], row>, 0 for slots without a row). attr experts.
extern const OpDef kCombineGrad;

/// rows ragged[E, t, k], w[E, n, k], plan -> ragged[E, t, n]: every expert's rows times its weight^T.
extern const OpDef kGroupedMatmul;
/// dy ragged[E, t, n], w[E, n, k], plan -> dx ragged[E, t, k].
extern const OpDef kGroupedMatmulDx;
/// dy ragged[E, t, n], x ragged[E, t, k], plan [, acc[E, n, k] f32] -> dw[E, n, k] f32 (in place into
/// acc when given, with attr accumulate = 1). An expert without rows gets zeros (nothing added).
extern const OpDef kGroupedMatmulDw;

struct Dispatched {
  Value rows, plan;
};
Dispatched dispatch(Graph& g, Value x, Value idx, int64_t experts, const std::string& name);
Value combine(Graph& g, Value rows, Value plan, Value weight, Value idx, DType dtype,
              const std::string& name);
Value grouped_matmul(Graph& g, Value rows, Value w, Value plan, const std::string& name);

}  // namespace moetrain::ops
