// Output head and cross entropy in one op that never stores whole logits.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (x[b, s, d], w[v, d], labels[b, s] i32, valid[b, s] f32, scale[] f32) ->
///   loss[] f32 = scale * sum, sum[] f32 = sum over tokens valid * -log softmax(x w^T)[label];
///   with attr gradient = 1 also dx[b, s, d] (x's dtype) and dw[v, d] f32, the gradients of `loss`.
/// Works chunk by chunk over tokens; logits, softmax and sums in float (sums over tokens in double).
/// The vjp hands dx, dw out and requires that the loss enters the total with factor one.
extern const OpDef kVocabLoss;

struct VocabLoss {
  Value loss, sum;
};
VocabLoss vocab_loss(Graph& g, Value x, Value w, Value labels, Value valid, Value scale,
                     bool gradient, const std::string& name);

}  // namespace moetrain::ops
