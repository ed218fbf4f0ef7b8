// The gated activation silu(gate) up and its slopes on vectors, compiled once per instruction set.
// NOLINT: included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_GATED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_GATED_INL_H
#undef MOETRAIN_GATED_INL_H
#else
#define MOETRAIN_GATED_INL_H
#endif

#include "runtime/device/cpu/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

// The sigmoid is as exact as the dtype of the tensors, of which `t` is a pointer into any.
HWY_INLINE Sigmoid sigmoid_for(const float*, VF x) { return sigmoid(x); }
HWY_INLINE Sigmoid sigmoid_for(const uint16_t*, VF x) { return quick_sigmoid(x); }

template <class T>
HWY_INLINE VF gated(const T* t, VF gate, VF up) {
  return hn::Mul(hn::Mul(gate, sigmoid_for(t, gate).value), up);
}

/// What silu(gate) and its slope are made of: silu' = s + silu (1 - s).
struct Gate {
  VF silu, slope;
};
template <class T>
HWY_INLINE Gate gate_of(const T* t, VF gate) {
  const Sigmoid s = sigmoid_for(t, gate);
  const VF silu = hn::Mul(gate, s.value);
  return {silu, hn::MulAdd(silu, s.rest, s.value)};
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
