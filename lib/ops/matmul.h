// Dense matrix products in the three forms of training. Weights keep the published [out, in].
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// y[..., n] = x[..., k] w[n, k]^T. y has x's dtype, or attr `dtype` if given. Float accumulation.
/// x and w may differ in dtype only as (f32 x, f32 w) or (bf16 x, bf16 w).
extern const OpDef kMatmul;
/// dx[..., k] = dy[..., n] w[n, k]. attr dtype optional (default dy's).
extern const OpDef kMatmulDx;
/// dw[n, k] = sum over rows dy[..., n]^T x[..., k], float32. With a third operand `acc` [n, k] f32 and
/// attr accumulate = 1 the result is acc + dw, written in place (output aliases operand 2).
extern const OpDef kMatmulDw;

Value matmul(Graph& g, Value x, Value w, const std::string& name);

}  // namespace moetrain::ops
