// The epilogues of tiles on every instruction set; the same vector arithmetic as the kernels of
// whole tensors, so the same bits.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/epilogue.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/epilogue.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/gated-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// v as it reads back after a store as T.
HWY_INLINE VF rounded(const float*, VF v) { return v; }
HWY_INLINE VF rounded(const uint16_t*, VF v) {
  HWY_ALIGN uint16_t buffer[kMaxLanes];
  store(v, buffer);
  return load(buffer);
}

template <class T>
void swiglu_tile(const float* gate, const float* up, int64_t ld, int64_t rows, int64_t cols,
                 void* gate_out, void* up_out, void* out, int64_t ldo) {
  T *g_out = static_cast<T*>(gate_out), *u_out = static_cast<T*>(up_out);
  T* y = static_cast<T*>(out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += lanes()) {
      const int64_t n = cols - j;
      const VF g = rounded(y, load(gate + i * ld + j, n));
      const VF u = rounded(y, load(up + i * ld + j, n));
      if (g_out) store(g, g_out + i * ldo + j, n);
      if (u_out) store(u, u_out + i * ldo + j, n);
      store(gated(y, g, u), y + i * ldo + j, n);
    }
  }
}

template <class T>
void swiglu_grad_tile(const float* d, int64_t ld, int64_t rows, int64_t cols, const void* gate,
                      const void* up, void* dgate, void* dup, int64_t ldo) {
  const T *g_in = static_cast<const T*>(gate), *u_in = static_cast<const T*>(up);
  T *dg = static_cast<T*>(dgate), *du = static_cast<T*>(dup);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += lanes()) {
      const int64_t n = cols - j, at = i * ldo + j;
      const VF v = load(d + i * ld + j, n), u = load(u_in + at, n);
      const Gate g = gate_of(g_in, load(g_in + at, n));
      store(hn::Mul(hn::Mul(v, u), g.slope), dg + at, n);
      store(hn::Mul(v, g.silu), du + at, n);
    }
  }
}

const EpilogueSet& float_epilogues() {
  static constexpr EpilogueSet set{&swiglu_tile<float>, &swiglu_grad_tile<float>};
  return set;
}
const EpilogueSet& bf16_epilogues() {
  static constexpr EpilogueSet set{&swiglu_tile<uint16_t>, &swiglu_grad_tile<uint16_t>};
  return set;
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(float_epilogues);
HWY_EXPORT(bf16_epilogues);

const EpilogueSet& epilogue_set(DType c_type) {
  if (c_type == DType::kBF16) return HWY_DYNAMIC_DISPATCH(bf16_epilogues)();
  return HWY_DYNAMIC_DISPATCH(float_epilogues)();
}

}  // namespace moetrain::cpu
#endif
