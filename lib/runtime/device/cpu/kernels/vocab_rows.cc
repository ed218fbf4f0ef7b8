// Column-wise softmax pieces on every instruction set.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/vocab_rows.h"

#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/vocab_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/pairs-inl.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

void exponentials(float* block, int64_t pitch, int64_t rows, int64_t cols, float* maximum,
                  float* sum) {
  const VF log2e = set1(kLog2E);
  for (int64_t c = 0; c < cols; c += lanes()) {
    VF top = load(block + c);
    for (int64_t r = 1; r < rows; ++r) top = hn::Max(top, load(block + r * pitch + c));
    VF total = set1(0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const VF e = exp2_below(hn::Mul(log2e, hn::Sub(load(block + r * pitch + c), top)));
      total = hn::Add(total, e);
      store(e, block + r * pitch + c);
    }
    store(top, maximum + c);
    store(total, sum + c);
  }
}

void gradients(float* block, int64_t pitch, int64_t rows, int64_t cols, const float* factor,
               uint16_t* rounded, int64_t rounded_pitch) {
  for (int64_t c = 0; c < cols; c += lanes()) {
    const VF f = load(factor + c);
    for (int64_t r = 0; r < rows; r += 2) {
      float* at = block + r * pitch + c;
      const bool two = r + 1 < rows;
      const VF a = hn::Mul(f, load(at)), b = two ? hn::Mul(f, load(at + pitch)) : set1(0.0f);
      if (rounded) {
        // The pairs overwrite a row that has been read: r / 2 is at most r.
        uint32_t* pairs = reinterpret_cast<uint32_t*>(block + r / 2 * pitch + c);
        store_rows(a, b, rounded + r * rounded_pitch + c, rounded_pitch, pairs);
      } else {
        store(a, at);
        if (two) store(b, at + pitch);
      }
    }
  }
}

const VocabRows& vocab_rows_here() {
  static constexpr VocabRows kRows{&exponentials, &gradients};
  return kRows;
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(vocab_rows_here);

const VocabRows& vocab_rows() { return HWY_DYNAMIC_DISPATCH(vocab_rows_here)(); }

}  // namespace moetrain::cpu
#endif
