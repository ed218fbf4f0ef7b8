// Rotary embedding and causal attention with unequal head dims (MLA), forward and backward.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (x[b, s, h, c] or x[b, s, c], pos[b, s] i32) -> same shape and dtype. Rotates the last `rope_dim`
/// entries of the last dim; the entries before them are copied. Pair m at position t becomes
/// A (a cos - b sin, a sin + b cos) with angle t * frequency[m]; attrs: rope_dim, frequencies
/// (reals, rope_dim/2), amplitude, interleave (1: pairs (2m, 2m+1); 0: (m, m + rope_dim/2)),
/// inverse (1: the transpose, used by the vjp: angle negated, amplitude kept), in_place (1: the result overwrites x;
/// only fusion says so).
extern const OpDef kRope;

/// Causal attention whose keys have an own part per head and a rotary part shared by all heads.
/// (q[b, s, h, n+r], kv[b, z, h, n+v], kr[b, z, r], q_pos[b, s] i32, k_pos[b, z] i32,
///  q_start[b, s] i32) -> o[b, s, h, v] (q's dtype), lse[b, s, h] f32.
/// Key of head j at z = [kv[.., j, :n]; kr]; value = kv[.., j, n:]. Query i sees key z iff
/// q_start[i] <= k_pos[z] <= q_pos[i]. score = scale * <q, k>; softmax in float; o = softmax v;
/// lse = log sum exp of scores. attrs: scale, nope (= n). Positions are ascending along s and z.
extern const OpDef kAttention;
/// (do[b,s,h,v], q, kv, kr, o, lse, q_pos, k_pos, q_start) -> dq, dkv, dkr (each like its operand).
/// attrs as kAttention.
extern const OpDef kAttentionGrad;

struct RopeTable {
  std::vector<double> frequencies;
  double amplitude = 1;
  bool interleave = true;
};
Value rope(Graph& g, Value x, Value pos, const RopeTable& table, const std::string& name);
Value attention(Graph& g, Value q, Value kv, Value kr, Value q_pos, Value k_pos, Value q_start,
                int64_t nope, double scale, const std::string& name);

}  // namespace moetrain::ops
