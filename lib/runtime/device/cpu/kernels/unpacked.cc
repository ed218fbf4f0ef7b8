// Register-tile products on B as it stands, for AVX-512 with and without the bf16 dot instruction.
#include "runtime/device/cpu/kernels/unpacked.h"

#include "runtime/device/cpu/kernels/target.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace moetrain::cpu {
namespace {

#define MOETRAIN_INLINE inline __attribute__((always_inline))

/// Rows of B between the one in use and the one asked for.
constexpr int64_t kAhead = 16;

/// Words are floats.
struct Floats {
  static MOETRAIN_INLINE __m512 add(__m512 sum, const float* a, __m512 b) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*a), b, sum);
  }
  /// Step p of 32 columns.
  static MOETRAIN_INLINE void load(const void* b, int64_t ldb, int64_t p, __m512 (&to)[2]) {
    const float* row = static_cast<const float*>(b) + p * ldb;
    __builtin_prefetch(row + kAhead * ldb);
    __builtin_prefetch(row + kAhead * ldb + 16);
    to[0] = _mm512_loadu_ps(row), to[1] = _mm512_loadu_ps(row + 16);
  }
};

/// Words are pairs of bf16.
struct Pairs {
  static MOETRAIN_INLINE __m512 add(__m512 sum, const float* a, __m512 b) {
    int word;
    __builtin_memcpy(&word, a, 4);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)b);
  }
  static MOETRAIN_INLINE void load(const void* b, int64_t ldb, int64_t p, __m512 (&to)[2]) {
    const uint16_t* row = static_cast<const uint16_t*>(b) + 2 * p * ldb;
    __builtin_prefetch(row + kAhead * ldb);
    __builtin_prefetch(row + (kAhead + 1) * ldb);
    const __m512i low = _mm512_loadu_si512(row), high = _mm512_loadu_si512(row + ldb);
    // Element j of one row, then element j of the other.
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    to[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, first, high));
    to[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, second, high));
  }
};

MOETRAIN_INLINE void finish(__m512 sum, float* c, bool accumulate) {
  _mm512_storeu_ps(c, accumulate ? _mm512_add_ps(_mm512_loadu_ps(c), sum) : sum);
}

template <class Words, int MR>
void plain_tile(int64_t k, const float* a, const void* b, int64_t ldb, float* c, int64_t ldc,
                bool accumulate) {
  __m512 sum[MR][2];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k; ++p) {
    __m512 v[2];
    Words::load(b, ldb, p, v);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      sum[i][0] = Words::add(sum[i][0], a + i * kUnpackedPitch + p, v[0]);
      sum[i][1] = Words::add(sum[i][1], a + i * kUnpackedPitch + p, v[1]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
    finish(sum[i][0], c + i * ldc, accumulate);
    finish(sum[i][1], c + i * ldc + 16, accumulate);
  }
}

/// Hides where a number comes from. The compiler would otherwise keep an address for each of the
/// sixteen rows of B and run out of registers.
template <class T>
MOETRAIN_INLINE T opaque(T x) {
  asm("" : "+r"(x));
  return x;
}

/// Eight words of each of two rows.
MOETRAIN_INLINE __m512 two_rows(const char* low, const char* high) {
  const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(low));
  const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(high));
  return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
}

/// Steps p and p + 4, p < 4, of the four rows at `low` and of those at `high`, `pitch` bytes apart.
MOETRAIN_INLINE void transpose_half(const char* low, const char* high, int64_t pitch, int64_t three,
                                    __m512 (&steps)[4]) {
  const __m512 r0 = two_rows(low, high), r1 = two_rows(low + pitch, high + pitch);
  const __m512 r2 = two_rows(low + 2 * pitch, high + 2 * pitch),
               r3 = two_rows(low + three, high + three);
  const __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
  const __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
  const __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
  const __m512d hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
  steps[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
  steps[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
  steps[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
  steps[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
}

/// Asks for four rows.
MOETRAIN_INLINE void announce(const char* row, int64_t pitch, int64_t three) {
  __builtin_prefetch(row, 0, 2);
  __builtin_prefetch(row + pitch, 0, 2);
  __builtin_prefetch(row + 2 * pitch, 0, 2);
  __builtin_prefetch(row + three, 0, 2);
}

template <class Words, int MR>
void transposed_tile(int64_t k, const float* a, const void* b, int64_t ldb, float* c, int64_t ldc,
                     bool accumulate) {
  __m512 sum[MR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) sum[i] = _mm512_setzero_ps();
  const int64_t pitch = opaque(ldb * 4), three = opaque(3 * pitch), four = opaque(4 * pitch);
  for (int64_t p = 0; p < k; p += 8) {
    const char* row0 = opaque(static_cast<const char*>(b) + p * 4);
    const char* row4 = opaque(row0 + four);
    const char* row8 = opaque(row4 + four);
    const char* row12 = opaque(row8 + four);
    // The rows of the next tile, a cache line of each: half of them now, half in the next turn.
    const char* next = opaque(row12 + four + (p & 8) * pitch);
    announce(next, pitch, three);
    announce(opaque(next + four), pitch, three);
    __m512 low[4], high[4];
    transpose_half(row0, row4, pitch, three, low);
    transpose_half(row8, row12, pitch, three, high);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
      const __m512 v = q < 4 ? _mm512_shuffle_f32x4(low[q], high[q], 0x88)
                             : _mm512_shuffle_f32x4(low[q - 4], high[q - 4], 0xdd);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) sum[i] = Words::add(sum[i], a + i * kUnpackedPitch + p + q, v);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) finish(sum[i], c + i * ldc, accumulate);
}

template <class Words>
constexpr UnpackedSet kSet = {
    {&plain_tile<Words, 1>, &plain_tile<Words, 2>, &plain_tile<Words, 3>, &plain_tile<Words, 4>,
     &plain_tile<Words, 5>, &plain_tile<Words, 6>, &plain_tile<Words, 7>, &plain_tile<Words, 8>},
    32,
    {&transposed_tile<Words, 1>, &transposed_tile<Words, 2>, &transposed_tile<Words, 3>,
     &transposed_tile<Words, 4>, &transposed_tile<Words, 5>, &transposed_tile<Words, 6>,
     &transposed_tile<Words, 7>, &transposed_tile<Words, 8>},
    16,
    8};

}  // namespace

const UnpackedSet* unpacked_set(DType operands) {
  const Target target = current_target();
  if (operands == DType::kBF16) return target == Target::kAvx512Bf16 ? &kSet<Pairs> : nullptr;
  return target >= Target::kAvx512 ? &kSet<Floats> : nullptr;
}

}  // namespace moetrain::cpu

#else

namespace moetrain::cpu {

const UnpackedSet* unpacked_set(DType) { return nullptr; }

}  // namespace moetrain::cpu

#endif
