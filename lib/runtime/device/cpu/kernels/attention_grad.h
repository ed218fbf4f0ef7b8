// Backward attention as the kernel table calls it.
#pragma once

#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

bool accepts_attention_grad(const Attrs&, std::span<const Type> in, std::span<const Type> out);
size_t attention_grad_workspace(const Attrs& attrs, std::span<const Type> in,
                                std::span<const Type> out, int threads);
void run_attention_grad(const LaunchArgs& args);

}  // namespace moetrain::cpu
