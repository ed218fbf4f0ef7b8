// Token embedding look-up.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (table[v, d], ids[b, s] i32) -> x[b, s, d] in attr `dtype` (default the table's). attr
/// `vocab_begin` (default 0, set on the local graph when v is split): row id - vocab_begin; an id
/// outside [vocab_begin, vocab_begin + v) gives a zero row. Rule: `local v`.
extern const OpDef kEmbedding;
/// (ids[b, s], dy[b, s, d]) -> dtable[v, d] f32; attrs vocab (v), vocab_begin. With a third operand
/// `acc` [v, d] f32 and attr accumulate = 1: added to it in place. Rows are summed in position order (deterministic).
extern const OpDef kEmbeddingGrad;

Value embedding(Graph& g, Value table, Value ids, DType dtype, const std::string& name);

}  // namespace moetrain::ops
