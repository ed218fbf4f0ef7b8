// Vector pieces of attention over blocks of scores that lie key-major: masked softmax, its
// gradient, and moving rows in and out.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace moetrain::cpu {

/// Keys that the queries of one vector see, as indices along z: any of them [begin, end), all of
/// them [common_begin, common_end).
struct LaneRange {
  int32_t begin, end, common_begin, common_end;
};

/// What a block of queries sees: per query, and per vector of queries.
struct BlockView {
  const int32_t *begin, *end;
  const LaneRange* lanes;
};

/// One step of the online softmax: scores of `keys` keys from `first_key` on, [keys][pitch],
/// against `vectors` vectors of queries.
struct SoftmaxRun {
  float* scores;
  int64_t pitch, first_key, keys, vectors;
  BlockView view;
  float scale;
  float *maximum, *sum;  ///< per query, updated
  float* shrink;         ///< per query: what was summed before has to be multiplied with it
  uint32_t* pairs;       ///< null: exponentials replace the scores. Else they go here as bf16, a
                         ///< word holds two keys, [(keys + 1) / 2][pairs_pitch]
  int64_t pairs_pitch;
};

/// Scores and the gradients of probabilities of a few keys, both [keys][pitch], that become
/// probabilities p = exp(scale * s - lse) and score gradients ds = p * (dp - delta); what is not
/// seen becomes zero.
struct GradientTile {
  const float *s, *dp;
  int64_t pitch, first_key, keys, vectors;
  BlockView view;
  float scale;
  const float *lse, *delta;  ///< per query
  void *p, *ds;              ///< [keys][out_pitch]: floats (may be s and dp), or bf16 with `pairs`
  int64_t out_pitch;
  uint32_t* pairs;  ///< ds once more, two keys in a word, [(keys + 1) / 2][pairs_pitch]; or null
  int64_t pairs_pitch;
};

/// The pieces on one instruction set.
struct AttentionRows {
  void (*softmax)(const SoftmaxRun& run);
  void (*gradient)(const GradientTile& tile);
  /// y[0, n) *= factor.
  void (*scale)(float* y, int64_t n, float factor);
  /// out[0, n) = factor * x[0, n), rounded to `dtype`.
  void (*finish)(const float* x, int64_t n, float factor, void* out, DType dtype);
  /// The same for `rows` rows, pitches in elements.
  void (*finish_rows)(const float* x, int64_t ld, int64_t rows, int64_t n, float factor, void* out,
                      int64_t ldo, DType dtype);
  /// out[i] = sum of a[i][j] * b[i][j] over j < n, both of `dtype`, rows `ld` elements apart.
  void (*dots)(const void* a, const void* b, int64_t ld, int64_t rows, int64_t n, DType dtype,
               float* out);
  /// acc[0, n) += x[0, n).
  void (*add)(float* acc, const float* x, int64_t n);
  /// Rows of `words` words, pitches in bytes and in words.
  void (*copy)(const void* from, int64_t bytes, int64_t rows, int64_t words, float* to,
               int64_t pitch);
};

const AttentionRows& attention_rows();

}  // namespace moetrain::cpu
