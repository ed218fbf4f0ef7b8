// Two rows of results as the next products read them, compiled once per instruction set. NOLINT:
// included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_PAIRS_INL_H
#undef MOETRAIN_PAIRS_INL_H
#else
#define MOETRAIN_PAIRS_INL_H
#endif

#include "runtime/device/cpu/kernels/two-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// Stores a and b, of two neighbouring rows: each to its own, and as bf16 also interleaved, an
/// element of each in a word, if there are `pairs`.
HWY_INLINE void store_rows(VF a, VF b, float* row, int64_t step, uint32_t*) {
  store(a, row), store(b, row + step);
}
HWY_INLINE void store_rows(VF a, VF b, uint16_t* row, int64_t step, uint32_t* pairs) {
#if HWY_TARGET == HWY_AVX3
  // Only with the bf16 instructions are there results in bf16.
  __m512i both;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a.raw), "v"(b.raw));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), _mm512_castsi512_si256(both));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + step), _mm512_extracti64x4_epi64(both, 1));
  if (!pairs) return;
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  _mm512_storeu_si512(pairs, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
#else
  store(a, row), store(b, row + step);
  if (pairs) store_two(Two{a, b}, reinterpret_cast<uint16_t*>(pairs));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
