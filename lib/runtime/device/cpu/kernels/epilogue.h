// What becomes of a tile of a product before it leaves the first-level cache: rounding, the gated
// activation and its gradient.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace moetrain::cpu {

/// Operands and results [rows, cols] with rows `ldo` apart, in the dtype of the set; tiles are
/// floats with rows `ld` apart.
struct EpilogueSet {
  /// gate and up, rounded (a null one is not stored), and silu(gate) up of the rounded ones.
  void (*swiglu)(const float* gate, const float* up, int64_t ld, int64_t rows, int64_t cols,
                 void* gate_out, void* up_out, void* out, int64_t ldo);
  /// Gradients of silu(gate) up for the tile d.
  void (*swiglu_grad)(const float* d, int64_t ld, int64_t rows, int64_t cols, const void* gate,
                      const void* up, void* dgate, void* dup, int64_t ldo);
};

/// For f32 or bf16 results, on the instruction set in use.
const EpilogueSet& epilogue_set(DType c_type);

}  // namespace moetrain::cpu
