// Vector pieces of the vocabulary loss, over blocks of logits that lie vocabulary-major.
#pragma once

#include <cstdint>

namespace moetrain::cpu {

/// The pieces on one instruction set. A block is [rows, cols]: a row is one vocabulary entry, a
/// column one token; cols is a whole number of vectors.
struct VocabRows {
  /// maximum[c] = largest of column c; block becomes exp(block - maximum); sum[c] = its column sum.
  void (*exponentials)(float* block, int64_t rows, int64_t cols, float* maximum, float* sum);
  /// block[r][c] *= factor[c].
  void (*scale)(float* block, int64_t rows, int64_t cols, const float* factor);
};

const VocabRows& vocab_rows();

}  // namespace moetrain::cpu
