// Register-only loops that reach the arithmetic peak of one core.
#pragma once

#include <cstdint>

namespace moetrain::cpu {

/// Runs `rounds` rounds of independent fused multiply-adds; returns their number of flops.
double float_peak_loop(int64_t rounds);
/// The same with the bf16 dot instruction; 0 where there is none.
double bf16_peak_loop(int64_t rounds);

}  // namespace moetrain::cpu
