// The latent's norm together with the shared key's rotation: ops that only compile/fuse makes, on one rank's graph.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (joint[b, s, c + r], g[c], pos[b, s] i32) -> y[b, s, c], rstd[b, s], k[b, s, r]: rms_norm of each row's first c
/// entries and rope of the r behind them, without parting the two first. attrs: those of rms_norm (eps, dtype of y)
/// and of rope (rope_dim = r), and optionally rope_dtype (of k; joint's without it). k is rounded once.
extern const OpDef kNormRope;
/// (dy[b, s, c], x[b, s, c or more], g[c], rstd[b, s], dk[b, s, r], pos[b, s] i32) -> djoint[b, s, c + r], dg[c]: dx as
/// rms_norm_grad, with the first c entries of each row of x, and behind it rope of dk. attrs: those of rope (inverse =
/// 1 for the gradient), optionally dtype (of djoint; x's without it) and copy (a dtype: djoint in that one as well).
extern const OpDef kNormRopeGrad;

}  // namespace moetrain::ops
