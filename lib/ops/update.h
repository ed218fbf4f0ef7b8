// The optimizer step as ops: accumulate, gradient norm, clip, AdamW, routing bias.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (acc, x) -> acc + x in place (output aliases acc). acc f32 / i64; x of any float / i64 dtype.
extern const OpDef kAccumulate;
/// (state) -> zeros in place.
extern const OpDef kClear;
/// (state, value) -> state = value, converted to state's dtype, in place.
extern const OpDef kAssign;
/// (x) -> scalar f32: sum of squares, accumulated in double over fixed blocks (order independent of
/// threads). Split dims make it partial.
extern const OpDef kSumSquares;
/// (norm2[] f32) -> norm[] f32 = sqrt(norm2), factor[] f32 = min(1, clip / (norm + 1e-6)), or -1 when
/// norm is not finite (then nothing may be updated). attrs: clip (0 = no clipping: factor 1).
extern const OpDef kClipFactor;
/// (p f32, m f32, v f32, g f32, factor[], hyper[4] f32) -> p, m, v in place. hyper = learning rate,
/// 1 - beta1^t, 1 - beta2^t, unused. attrs: beta1, beta2, eps, decay. g is used as factor * g; factor
/// < 0: nothing changes. With attr copy = 1 a seventh operand (bf16) becomes the rounded copy of p, in
/// place (made by fusion only). Formula: tests/data/golden/README.md 6. Elementwise rule.
extern const OpDef kAdamw;
/// (bias[E] f32, load[E] i64, speed[] f32, factor[]) -> bias in place: b_e += speed * sign(mean - load_e)
/// with exact integer comparison (E * load_e against the sum); factor < 0: nothing changes.
extern const OpDef kBiasUpdate;

}  // namespace moetrain::ops
