// Several products of one input as one op, with what stands before and behind them: ops that only
// compile/fuse makes, on one rank's graph.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

// All take attr `count` (m, the number of weights) and optionally `grouped` = 1: then rows are ragged
// [E, t, ...], weights [E, n, k], and the dispatch plan (experts.h) follows the operands named here.
// Where `gather` = 1 as well, x is not the rows but their source: row r is row source[r] / top_k of x
// (any shape [..., k], seen as rows), `source` being the plan's slots; attr top_k.

/// (x[..., k], w_1[n_1, k] .. w_m [, plan [, bind]]) -> y_1[..., n_1] .. y_m = x w_i^T, in attr `dtype` or
/// x's. With attr `act` = "swiglu" (m = 2, n_1 = n_2) one more output: hidden = silu(y_1) y_2 of the rounded
/// y, in their dtype; with `keep` = 0 besides it is the only one. With `gather` the last operand is the bind
/// that counted the rows; attrs which, capacity as gather_rows (ops/rows.h).
extern const OpDef kProjections;
/// (dy_1[..., n_1] .. dy_m, w_1[n_1, k] .. w_m [, plan]) -> dx[..., k] = sum over i of dy_i w_i, summed in
/// float, in attr `dtype` or dy's.
extern const OpDef kProjectionsDx;
/// (dy_1[..., n_1] .. dy_m, x[..., k] [, plan] [, acc_1[n_1, k] f32 ..]) -> dw_1[n_1, k] .. f32, dw_i = sum
/// over rows dy_i^T x; with attr accumulate = 1 in place into acc_i. An expert without rows gets zeros
/// (nothing added).
extern const OpDef kProjectionsDw;
/// (dy[..., n], w[n, k], gate[..., k], up [, plan]) -> dgate, dup: those of swiglu for dh = dy w, which stays
/// in float. No attr count.
extern const OpDef kMatmulDxSwiglu;

/// Where the operands of a node begin.
struct ProjectionOperands {
  size_t count = 0;
  size_t weights = 0;  ///< first weight (dx, forward)
  size_t x = 0;        ///< dw
  size_t plan = 0;     ///< 0: not grouped
  size_t acc = 0;      ///< dw: first accumulator, 0: none
};
ProjectionOperands projections_operands(const Attrs& attrs);
ProjectionOperands projections_dx_operands(const Attrs& attrs);
ProjectionOperands projections_dw_operands(const Attrs& attrs);

}  // namespace moetrain::ops
