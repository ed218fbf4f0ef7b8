// RMSNorm together with the sums around it: ops that only compile/fuse makes, on one rank's graph.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (term..., g[d]) -> x = the terms' sum in the widest dtype, added left to right in float; y, rstd as
/// rms_norm of the unrounded x; with attr copy (a dtype) also y in that dtype, rounded once. attrs: eps,
/// optionally dtype (of y) and copy.
extern const OpDef kAddRmsNorm;
/// (dy, x, g, rstd, other[..., d], more dy...) -> other + dx in the wider dtype of other and x, dg as
/// rms_norm_grad of the sum of all dy, which is not rounded; with attr copy (a dtype) also other + dx in that dtype.
extern const OpDef kRmsNormGradAdd;

}  // namespace moetrain::ops
