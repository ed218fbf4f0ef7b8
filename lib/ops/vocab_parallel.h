// The vocabulary loss when every rank holds some columns of the head: statistics, then the finish.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (x[b, s, d], w[v, d], labels[b, s] i32) -> statistics[3, b, s] f32 of this rank's columns
/// [vocab_begin, vocab_begin + v): row maximum, sum of exp(logit - maximum), logit of the label (0 when
/// the label is another rank's). Chunk by chunk; logits in float. attrs: vocab_begin, gradient (unused).
extern const OpDef kVocabStatistics;
/// (x, w, labels, valid[b, s] f32, scale[] f32, statistics[m, 3, b, s] of all ranks) -> like kVocabLoss:
/// loss[], sum[] over all columns (the same on all ranks) and, with attr gradient = 1, dx[b, s, d] (this
/// rank's addend), dw[v, d] f32 of this rank's columns. attrs: vocab_begin, gradient.
extern const OpDef kVocabLossFinish;

}  // namespace moetrain::ops
