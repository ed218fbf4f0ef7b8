// Vector loads and stores of f32 and bf16 with tails, compiled once per instruction set. NOLINT:
// included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_VECTORS_INL_H
#undef MOETRAIN_VECTORS_INL_H
#else
#define MOETRAIN_VECTORS_INL_H
#endif

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/tensor.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/target.h"

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

/// Rounded to nearest even in the upper half of each word, whatever in the lower. Not for NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> round_number(VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const auto u = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
  return hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu)));
}
/// The same; NaN stays NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> round_to_high_half(VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const auto quiet = hn::Or(hn::BitCast(d32, v), hn::Set(d32, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, round_number(v));
}

HWY_INLINE void store(VF v, float* p) { hn::StoreU(v, DF(), p); }
/// Rounds to nearest even; NaN stays NaN. (Numbers below 2^-126 may become zero.)
HWY_INLINE void store(VF v, uint16_t* p) {
#if HWY_TARGET == HWY_AVX3
  if (HWY_LIKELY(bf16_instructions)) {  // Highway 1.0 does not know this instruction
    __m256i rounded;
    asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v.raw));
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
  }
#endif
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToSigned<DF> di;
  const auto rounded = hn::ShiftRight<16>(round_to_high_half(v));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, rounded)), d16, p);
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

/// Stands for "as many as there are" where a number of elements is asked for.
struct Whole {};
template <class T>
HWY_INLINE VF load(const T* p, Whole) {
  return load(p);
}
template <class T>
HWY_INLINE void store(VF v, T* p, Whole) {
  store(v, p);
}
/// The vector at element i of a tensor of either width; n as for load.
template <class N>
HWY_INLINE VF load_any(const Tensor& t, int64_t i, N n) {
  return t.dtype == DType::kF32 ? load(t.as<const float>() + i, n)
                                : load(t.as<const uint16_t>() + i, n);
}
/// Calls body(i, n) for vectors of [begin, end), then for what is left; n is the last argument of load and
/// store.
template <class Body>
HWY_INLINE void by_one(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + lanes() <= end; i += lanes()) body(i, Whole());
  if (i < end) body(i, end - i);
}
/// Copies n elements: whole vectors, the last one over the one before it; short ones as they are.
template <class T>
HWY_INLINE void copy_row(const T* from, T* to, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  if (n < width)
    return static_cast<void>(std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T)));
  const auto last = hn::LoadU(d, from + n - width);
  for (int64_t i = 0; i + width < n; i += width) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  hn::StoreU(last, d, to + n - width);
}

/// Sum of all lanes in a fixed order.
HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }

/// x, but at least `lowest` (at most `highest`); NaN stays NaN, so that bad numbers are not hidden.
/// x86 returns the second operand where either is NaN; ARM's instruction would return the number.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE VF at_least(VF x, VF lowest) { return hn::Max(lowest, x); }
HWY_INLINE VF at_most(VF x, VF highest) { return hn::Min(highest, x); }
#else
HWY_INLINE VF at_least(VF x, VF lowest) { return hn::IfThenElse(hn::Lt(x, lowest), lowest, x); }
HWY_INLINE VF at_most(VF x, VF highest) { return hn::IfThenElse(hn::Gt(x, highest), highest, x); }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
