// Times the CPU kernels on the shapes of training and compares them with what this machine can do.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"

namespace moetrain::cpu {

/// What to time. The sizes are those of one transformer layer; the defaults are a mid-size model.
struct BenchKernelOptions {
  int threads = 1;
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::string filter;              ///< only kernels whose name contains this
  double seconds_per_case = 0.15;  ///< time spent on each case, at least three runs
  int64_t batch = 4, sequence = 512, hidden = 512, ffn = 1408;
  int64_t experts = 16, top_k = 4, expert_width = 256;
  int64_t heads = 8, nope = 64, rope = 32, value = 64, latent = 128, vocab = 8192;
};

/// What this machine can do with `threads` threads, probed in registers and over large buffers.
struct MachinePeaks {
  double f32_flops = 0;   ///< fused multiply-adds per second, twice
  double bf16_flops = 0;  ///< the same for the bf16 dot instruction; f32_flops without it
  double copy_bytes = 0;  ///< bytes read plus bytes written per second
  double of(DType dtype) const { return dtype == DType::kBF16 ? bf16_flops : f32_flops; }
};

/// A fraction of a second of measuring.
MachinePeaks probe_peaks(int threads);
/// A table: per kernel and shape the median rate, its share of the peak, and the best run's share;
/// then the table of bench_fused.
std::string bench_kernels(const BenchKernelOptions& options);

}  // namespace moetrain::cpu
