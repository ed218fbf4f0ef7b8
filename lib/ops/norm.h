// RMSNorm over the last dim.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (x[..., d], g[d] f32) -> y[..., d], rstd[...] f32 with rstd = 1/sqrt(mean(x^2) + eps). attrs: eps,
/// optionally dtype (of y; x's without it: a float32 residual stream is normed to bf16 in one pass).
/// Computed in float.
extern const OpDef kRmsNorm;
/// (dy[..., d] of any width, x[..., d], g[d], rstd[...]) -> dx[..., d] (x's dtype, or attr dtype), dg[d] f32 (sum over
/// rows in a fixed order that does not depend on threads).
extern const OpDef kRmsNormGrad;

Value rms_norm(Graph& g, Value x, Value gain, double eps, DType dtype, const std::string& name);

}  // namespace moetrain::ops
