// Vector pieces of the vocabulary loss, over blocks of logits that lie vocabulary-major.
#pragma once

#include <cstdint>

namespace moetrain::cpu {

/// The pieces on one instruction set. A block is [rows, cols], rows `pitch` floats apart: a row is
/// one vocabulary entry, a column one token; cols is a whole number of vectors.
struct VocabRows {
  /// maximum[c] = largest of column c; block becomes exp(block - maximum); sum[c] = its column sum.
  void (*exponentials)(float* block, int64_t pitch, int64_t rows, int64_t cols, float* maximum,
                       float* sum);
  /// block[r][c] *= factor[c]. With `rounded` (only where there are bf16 instructions) the products
  /// go there as bf16, rows `rounded_pitch` elements apart, and into the block as pairs of rows,
  /// two bf16 in a word: [(rows + 1) / 2, cols], the same pitch.
  void (*gradients)(float* block, int64_t pitch, int64_t rows, int64_t cols, const float* factor,
                    uint16_t* rounded, int64_t rounded_pitch);
};

const VocabRows& vocab_rows();

}  // namespace moetrain::cpu
