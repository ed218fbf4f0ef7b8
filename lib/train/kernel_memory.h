// The CPU device a run computes on, and the memory its kernels take besides the plan's slots.
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "runtime/device/device.h"

namespace moetrain {

/// Options of the CPU device for `graph` under this configuration.
CpuOptions cpu_options(const Config& config, const Graph& graph, int64_t threads);

struct KernelMemory {
  int64_t workspace = 0;  ///< scratch of the most demanding launch, bytes
  int64_t packed = 0;     ///< copies of weights as kernels like them
};

/// What an executor of `plan` on `device` would take; nothing is allocated.
KernelMemory kernel_memory(const Plan& plan, Device& device);

}  // namespace moetrain
