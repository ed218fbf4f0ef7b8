// RMSNorm over the last dim.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (x[..., d], g[d] f32) -> y[..., d] in x's dtype, rstd[...] f32 with rstd = 1/sqrt(mean(x^2) + eps).
/// attrs: eps. Computed in float.
extern const OpDef kRmsNorm;
/// (dy[..., d], x[..., d], g[d], rstd[...]) -> dx[..., d] (x's dtype), dg[d] f32 (sum over rows in a
/// fixed order that does not depend on threads).
extern const OpDef kRmsNormGrad;

Value rms_norm(Graph& g, Value x, Value gain, double eps, const std::string& name);

}  // namespace moetrain::ops
