// Joins the families' rows into the one ordered table.
#include <cstring>
#include <vector>

#include "base/error.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/target.h"

namespace moetrain::cpu {

std::span<const Kernel> cpu_kernels() {
  static const std::vector<Kernel> table = [] {
    current_target();  // settles the instruction set before the first kernel runs
    std::vector<Kernel> all;
    for (const auto& family :
         {matmul_kernels(), elementwise_kernels(), layout_kernels(), norm_kernels(),
          fused_norm_kernels(), rope_kernels(), fused_rope_kernels(), attention_kernels(),
          embedding_kernels(), route_kernels(), rows_kernels(), expert_kernels(),
          vocab_loss_kernels(), update_kernels()}) {
      all.insert(all.end(), family.begin(), family.end());
    }
    return all;
  }();
  return table;
}

const Kernel* find_kernel(const char* op, const Attrs& attrs, std::span<const Type> in,
                          std::span<const Type> out) {
  for (const Kernel& kernel : cpu_kernels()) {
    if (std::strcmp(kernel.op, op) == 0 && kernel.accepts(attrs, in, out)) return &kernel;
  }
  return nullptr;
}

Carver::Carver(const LaunchArgs& args)
    : next_(args.workspace), end_(args.workspace + args.workspace_bytes) {
  next_ += -reinterpret_cast<uintptr_t>(next_) & 63;
}

void* Carver::take_bytes(size_t bytes) {
  std::byte* piece = next_;
  next_ += round_up_64(bytes);
  MT_CHECK(next_ <= end_, "workspace is ", next_ - end_, " bytes too small");
  return piece;
}

}  // namespace moetrain::cpu
