// Vector helpers compiled once per instruction set: those of two-inl.h, exp, sigmoid.
// NOLINT: included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_SIMD_INL_H
#undef MOETRAIN_SIMD_INL_H
#else
#define MOETRAIN_SIMD_INL_H
#endif

#include "runtime/device/cpu/kernels/two-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

constexpr float kLog2E = 1.44269504088896341f;

// 1.5 * 2^23 + 127: adding it to y rounds y to a whole n and leaves n + 127 in the low bits, ready
// to become the exponent of 2^n. Multiplying by that power, unlike adding to exponent bits, keeps
// NaN a NaN.
constexpr float kRounder = 12583039.0f;
HWY_INLINE VF power_of(VF shifted) {
  const hn::RebindToUnsigned<DF> du;
  return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
}

/// e^x for -87.3 <= x <= 88.3, to about 1 ulp.
HWY_INLINE VF exp_in_range(VF x) {
  const VF shifted = hn::MulAdd(x, set1(kLog2E), set1(kRounder));
  const VF n = hn::Sub(shifted, set1(kRounder));
  // x log2(e) - n, with the constant in two parts: exact enough for every x in range.
  VF f = hn::MulSub(x, set1(kLog2E), n);
  f = hn::MulAdd(x, set1(1.92596303e-8f), f);
  VF p = set1(1.5453162939e-4f);
  p = hn::MulAdd(p, f, set1(1.3390863365e-3f));
  p = hn::MulAdd(p, f, set1(9.6180825573e-3f));
  p = hn::MulAdd(p, f, set1(5.5503571142e-2f));
  p = hn::MulAdd(p, f, set1(2.4022650761e-1f));
  p = hn::MulAdd(p, f, set1(6.9314718803e-1f));
  p = hn::MulAdd(p, f, set1(1.0f));
  return hn::Mul(p, power_of(shifted));
}

/// e^x; 0 below -87.3, the largest finite power above 88.3.
HWY_INLINE VF exp(VF x) {
  const VF lowest = set1(-87.3f);
  const VF e = exp_in_range(at_most(at_least(x, lowest), set1(88.3f)));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), e);
}

/// 2^t for t <= 1 or so, to about 3e-7; 2^-126 below -126. The cheap one, for softmax.
HWY_INLINE VF exp2_below(VF t) {
  const VF y = at_least(t, set1(-126.0f));
  const VF shifted = hn::Add(y, set1(kRounder));
  const VF f = hn::Sub(y, hn::Sub(shifted, set1(kRounder)));
  VF p = set1(1.3382847234e-3f);
  p = hn::MulAdd(p, f, set1(9.6663685154e-3f));
  p = hn::MulAdd(p, f, set1(5.5503761862e-2f));
  p = hn::MulAdd(p, f, set1(2.4022349038e-1f));
  p = hn::MulAdd(p, f, set1(6.9314718358e-1f));
  p = hn::MulAdd(p, f, set1(1.0f));
  return hn::Mul(p, power_of(shifted));
}

/// 1 / x for 1 <= x.
HWY_INLINE VF reciprocal(VF x) {
#if HWY_TARGET == HWY_AVX3
  // The estimate has 14 bits; one Newton step doubles them. With AVX2 the loops wait for their longest
  // chain, which a division makes shorter.
  const VF r = hn::ApproximateReciprocal(x);
  return hn::Mul(r, hn::NegMulAdd(x, r, set1(2.0f)));
#else
  return hn::Div(set1(1.0f), x);
#endif
}

/// 1 / (1 + e^-x), and what is missing to 1 without cancellation.
struct Sigmoid {
  VF value, rest;
};
HWY_INLINE Sigmoid sigmoid(VF x) {
  const VF e = exp_in_range(at_most(at_least(hn::Neg(x), set1(-87.3f)), set1(87.3f)));
  const VF value = reciprocal(hn::Add(set1(1.0f), e));
  return {value, hn::Mul(e, value)};
}
/// The same to 7e-5 (the estimate of AVX-512), a fiftieth of what rounding to bf16 loses.
HWY_INLINE Sigmoid quick_sigmoid(VF x) {
  const VF t = at_most(at_least(hn::Mul(x, set1(-kLog2E)), set1(-126.0f)), set1(126.0f));
  const VF shifted = hn::Add(t, set1(kRounder));
  const VF f = hn::Sub(t, hn::Sub(shifted, set1(kRounder)));
  const VF upper = hn::MulAdd(set1(9.5828529e-3f), f, set1(5.5906425e-2f));
  const VF lower = hn::MulAdd(set1(2.4024099e-1f), f, set1(6.9312419e-1f));
  const VF p = hn::MulAdd(hn::MulAdd(upper, hn::Mul(f, f), lower), f, set1(1.0f));
  const VF e = hn::Mul(p, power_of(shifted));
#if HWY_TARGET == HWY_AVX3
  const VF value = hn::ApproximateReciprocal(hn::Add(set1(1.0f), e));
#else
  const VF value = reciprocal(hn::Add(set1(1.0f), e));
#endif
  return {value, hn::Mul(e, value)};
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
