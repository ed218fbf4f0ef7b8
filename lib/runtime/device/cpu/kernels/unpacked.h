// Register-tile products that read B where it stands: for so few rows that packing B would cost as
// much as the product.
#pragma once

#include "runtime/device/cpu/kernels/micro.h"

namespace moetrain::cpu {

/// Rows of the largest tile.
constexpr int kUnpackedRows = 8;
/// Words of k at most.
constexpr int64_t kUnpackedSteps = 2048;
/// Words from row to row of A. It is copied: rows a power of two apart would meet the rows of B in
/// few sets of the first-level cache, and a known distance leaves the registers to B.
constexpr int64_t kUnpackedPitch = kUnpackedSteps + 16;

/// C[MR, columns] (+)= A[MR, k] B over `k` words (as in MicroKernel), A(i, p) = a[i *
/// kUnpackedPitch
/// + p]. Every sum is the same chain as there, so the bits are the same too.
using UnpackedKernel = void (*)(int64_t k, const float* a, const void* b, int64_t ldb, float* c,
                                int64_t ldc, bool accumulate);

/// Tiles of 1 to kUnpackedRows rows.
struct UnpackedSet {
  /// B(p, j) = b[p * ldb + j] over `plain_cols` columns; ldb in elements (bf16: word p stands in
  /// rows 2 p and 2 p + 1).
  UnpackedKernel plain[kUnpackedRows];
  int plain_cols;
  /// B(p, j) = b[j * ldb + p] over `transposed_cols` columns; ldb in words, k a multiple of
  /// `transposed_steps`.
  UnpackedKernel transposed[kUnpackedRows];
  int transposed_cols, transposed_steps;
};

/// The kernels for these operands on the instruction set in use, or null.
const UnpackedSet* unpacked_set(DType operands);

}  // namespace moetrain::cpu
