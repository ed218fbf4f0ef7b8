// The kernel rows each family contributes to the table.
#pragma once

#include <span>

#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

std::span<const Kernel> matmul_kernels();
std::span<const Kernel> elementwise_kernels();
std::span<const Kernel> layout_kernels();
std::span<const Kernel> norm_kernels();
std::span<const Kernel> fused_norm_kernels();
std::span<const Kernel> rope_kernels();
std::span<const Kernel> fused_rope_kernels();
std::span<const Kernel> attention_kernels();
std::span<const Kernel> embedding_kernels();
std::span<const Kernel> route_kernels();
std::span<const Kernel> rows_kernels();
std::span<const Kernel> expert_kernels();
std::span<const Kernel> vocab_loss_kernels();
std::span<const Kernel> update_kernels();

/// f32 or bf16: what the vector kernels read and write.
inline bool is_f32_or_bf16(const Type& t) {
  return t.dtype == DType::kF32 || t.dtype == DType::kBF16;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Rounds up to whole cache lines.
inline size_t round_up_64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

/// Hands out aligned pieces of a launch's workspace.
class Carver {
 public:
  explicit Carver(const LaunchArgs& args);
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  /// What is left.
  std::byte* rest() const { return next_; }
  size_t rest_bytes() const { return static_cast<size_t>(end_ - next_); }

 private:
  void* take_bytes(size_t bytes);

  std::byte* next_;
  std::byte* end_;
};

/// What a Carver may lose to alignment at the start.
constexpr size_t kCarverSlack = 64;

}  // namespace moetrain::cpu
