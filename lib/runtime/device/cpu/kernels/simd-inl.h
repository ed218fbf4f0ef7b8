// Vector helpers compiled once per instruction set: loads and stores of f32 and bf16 with tails, exp.
// NOLINT: included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_SIMD_INL_H
#undef MOETRAIN_SIMD_INL_H
#else
#define MOETRAIN_SIMD_INL_H
#endif

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
/// Floats of the longest vector: 512 bits.
constexpr int64_t kMaxLanes = 16;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(DF())); }

HWY_INLINE VF load(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF load(const uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

HWY_INLINE void store(VF v, float* p) { hn::StoreU(v, DF(), p); }
/// Rounds to nearest even; NaN stays NaN.
HWY_INLINE void store(VF v, uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const hn::RebindToSigned<DF> di;
  const auto u = hn::BitCast(d32, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto bias = hn::Add(hn::And(high, hn::Set(d32, 1u)), hn::Set(d32, 0x7fffu));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, bias));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40u));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::IfThenElse(nan, quiet, rounded))), d16, p);
}

/// The first min(n, lanes) elements, the others zero.
template <class T>
HWY_INLINE VF load(const T* p, int64_t n) {
  if (HWY_LIKELY(n >= lanes())) return load(p);
  HWY_ALIGN T buffer[kMaxLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
HWY_INLINE void store(VF v, T* p, int64_t n) {
  if (HWY_LIKELY(n >= lanes())) return store(v, p);
  HWY_ALIGN T buffer[kMaxLanes];
  store(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

HWY_INLINE VF set1(float x) { return hn::Set(DF(), x); }

/// Sum of all lanes in a fixed order.
HWY_INLINE float sum_lanes(VF v) {
  return hn::GetLane(hn::SumOfLanes(DF(), v));
}

/// e^x to about 1 ulp; 0 below -87.3, the largest finite power above 88.3.
HWY_INLINE VF exp(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto small = hn::Lt(x, set1(-87.3f));
  const VF y = hn::Min(hn::Max(x, set1(-87.3f)), set1(88.3f));
  const VF n = hn::Round(hn::Mul(y, set1(1.44269504088896341f)));
  VF r = hn::NegMulAdd(n, set1(0.693359375f), y);
  r = hn::NegMulAdd(n, set1(-2.12194440e-4f), r);
  VF p = set1(1.9875691500e-4f);
  p = hn::MulAdd(p, r, set1(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set1(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set1(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set1(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set1(5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, set1(1.0f)));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenZeroElse(small, hn::Mul(p, hn::BitCast(d, power)));
}

constexpr float kLog2E = 1.44269504088896341f;

/// 2^t for t <= 1 or so, to about 3e-7; 2^-126 below -126. The cheap one, for softmax.
HWY_INLINE VF exp2_below(VF t) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF y = hn::Max(t, set1(-126.0f));
  const VF n = hn::Round(y);
  const VF f = hn::Sub(y, n);
  VF p = set1(1.3382847234e-3f);
  p = hn::MulAdd(p, f, set1(9.6663685154e-3f));
  p = hn::MulAdd(p, f, set1(5.5503761862e-2f));
  p = hn::MulAdd(p, f, set1(2.4022349038e-1f));
  p = hn::MulAdd(p, f, set1(6.9314718358e-1f));
  p = hn::MulAdd(p, f, set1(1.0f));
  const auto power = hn::ShiftLeft<23>(hn::ConvertTo(di, n));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), power));
}

/// 1 / (1 + e^-x).
HWY_INLINE VF sigmoid(VF x) {
  const VF one = set1(1.0f);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
