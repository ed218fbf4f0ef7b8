// Two vectors of neighbours at a time, the quick way through bf16; compiled once per instruction set.
// NOLINT: included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_TWO_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_TWO_INL_H
#undef MOETRAIN_TWO_INL_H
#else
#define MOETRAIN_TWO_INL_H
#endif

#include "runtime/device/cpu/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// 2 * lanes() neighbours as two vectors: halves of floats, but the even and the odd elements of
/// bf16, which part with one instruction each.
struct Two {
  VF a, b;
};
HWY_INLINE Two load_two(const float* p) { return {load(p), load(p + lanes())}; }
HWY_INLINE Two load_two(const uint16_t* p) {
  const hn::RebindToUnsigned<DF> d32;
  const auto words = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(p));
  return {hn::BitCast(DF(), hn::ShiftLeft<16>(words)),
          hn::BitCast(DF(), hn::And(words, hn::Set(d32, 0xffff0000u)))};
}
HWY_INLINE void store_two(Two v, float* p) { store(v.a, p), store(v.b, p + lanes()); }
HWY_INLINE void store_two(Two v, uint16_t* p) {
#if HWY_TARGET == HWY_AVX3
  if (HWY_LIKELY(bf16_instructions)) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i packed;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(packed) : "v"(v.a.raw), "v"(v.b.raw));
    return _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), packed));
  }
#endif
  const hn::RebindToUnsigned<DF> d32;
  hn::Vec<hn::RebindToUnsigned<DF>> low, high;
  if (HWY_LIKELY(hn::AllFalse(DF(), hn::Or(hn::IsNaN(v.a), hn::IsNaN(v.b))))) {
    low = round_number(v.a), high = round_number(v.b);
  } else {
    low = round_to_high_half(v.a), high = round_to_high_half(v.b);
  }
  low = hn::ShiftRight<16>(low);
#if HWY_TARGET == HWY_SCALAR
  const auto both = hn::Or(low, hn::And(high, hn::Set(d32, 0xffff0000u)));
#else
  const hn::Repartition<uint16_t, DF> d16;
  const auto both = hn::BitCast(d32, hn::OddEven(hn::BitCast(d16, high), hn::BitCast(d16, low)));
#endif
  hn::StoreU(both, d32, reinterpret_cast<uint32_t*>(p));
}

/// Past the caches, to memory aligned to 64 bytes. Before another thread may read it: hwy::FlushStream().
HWY_INLINE void stream_two(Two v, float* p) {
  hn::Stream(v.a, DF(), p);
  hn::Stream(v.b, DF(), p + lanes());
}
HWY_INLINE void stream_two(Two v, uint16_t* p) {
  const hn::RebindToUnsigned<DF> d32;
  HWY_ALIGN uint16_t buffer[2 * kMaxLanes];
  store_two(v, buffer);
  hn::Stream(hn::Load(d32, reinterpret_cast<const uint32_t*>(buffer)), d32,
             reinterpret_cast<uint32_t*>(p));
}

template <class T>
HWY_INLINE Two load_two(const T* p, Whole) {
  return load_two(p);
}
template <class T>
HWY_INLINE void store_two(Two v, T* p, Whole) {
  store_two(v, p);
}
/// Calls body(i, n) for steps of 2 * lanes() elements of [begin, end), then for what is left; n is
/// the third argument of load_two and store_two.
template <class Body>
HWY_INLINE void by_two(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + 2 * lanes() <= end; i += 2 * lanes()) body(i, Whole());
  if (i < end) body(i, end - i);
}
/// The first min(n, 2 * lanes()) elements, the others zero.
template <class T>
HWY_INLINE Two load_two(const T* p, int64_t n) {
  if (HWY_LIKELY(n >= 2 * lanes())) return load_two(p);
  HWY_ALIGN T buffer[2 * kMaxLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return load_two(buffer);
}
template <class T>
HWY_INLINE void store_two(Two v, T* p, int64_t n) {
  if (HWY_LIKELY(n >= 2 * lanes())) return store_two(v, p);
  HWY_ALIGN T buffer[2 * kMaxLanes];
  store_two(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

/// 2 * lanes() neighbours as their even and their odd elements, whatever the type: pairs of floats
/// take shuffles, those of bf16 are what load_two gives anyway.
HWY_INLINE Two load_pairs(const float* x, Whole) {
  Two pairs;
  hn::LoadInterleaved2(DF(), x, pairs.a, pairs.b);
  return pairs;
}
HWY_INLINE void store_pairs(Two pairs, float* y, Whole) {
  hn::StoreInterleaved2(pairs.a, pairs.b, DF(), y);
}
template <class N>
HWY_INLINE Two load_pairs(const uint16_t* x, N n) {
  return load_two(x, n);
}
template <class N>
HWY_INLINE void store_pairs(Two pairs, uint16_t* y, N n) {
  store_two(pairs, y, n);
}
HWY_INLINE Two load_pairs(const float* x, int64_t n) {
  HWY_ALIGN float buffer[2 * kMaxLanes] = {};
  std::memcpy(buffer, x, static_cast<size_t>(n) * sizeof(float));
  return load_pairs(buffer, Whole());
}
HWY_INLINE void store_pairs(Two pairs, float* y, int64_t n) {
  HWY_ALIGN float buffer[2 * kMaxLanes];
  store_pairs(pairs, buffer, Whole());
  std::memcpy(y, buffer, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
