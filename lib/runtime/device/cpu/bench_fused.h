// Times fused kernels against the kernels they replace.
#pragma once

#include <string>

#include "runtime/device/cpu/bench.h"

namespace moetrain::cpu {

/// A table: per fusion the median times of its kernel and of those it replaces, run in turns, and
/// their ratio. Only fusions whose name contains `options.filter`; empty if there is none.
std::string bench_fused(const BenchKernelOptions& options);

}  // namespace moetrain::cpu
