// Register-tile products with the bf16 dot instruction; the only unit built with -mavx512bf16.
#include "runtime/device/cpu/kernels/micro.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace moetrain::cpu {
namespace {

#define MOETRAIN_INLINE inline __attribute__((always_inline))

/// Rows of A a stride apart, or anywhere. at(i, p): where word p of row i stands.
struct Strided {
  const uint32_t* a;
  int64_t rs, cs;
  MOETRAIN_INLINE const uint32_t* at(int64_t i, int64_t p) const { return a + i * rs + p * cs; }
};
template <int MR>
struct Gathered {
  const uint32_t* rows[MR];
  MOETRAIN_INLINE const uint32_t* at(int64_t i, int64_t p) const { return rows[i] + p; }
};

template <int MR, int NV, class A>
MOETRAIN_INLINE void tile_steps(int64_t begin, int64_t end, const A& a, const uint32_t* b,
                                int64_t ldb, __m512 (&acc)[MR][NV]) {
  for (int64_t p = begin; p < end; ++p) {
    __m512bh vb[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) vb[j] = (__m512bh)_mm512_loadu_si512(b + p * ldb + j * 16);
#pragma GCC unroll 6
    for (int i = 0; i < MR; ++i) {
      // Rows of an odd number of bf16 leave words at odd halves: an unaligned load.
      int word;
      __builtin_memcpy(&word, a.at(i, p), 4);
      const __m512bh va = (__m512bh)_mm512_set1_epi32(word);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], va, vb[j]);
    }
  }
}

template <int MR, int NV>
MOETRAIN_INLINE void begin_tile(const float* c, int64_t ldc, __m512 (&acc)[MR][NV]) {
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      // C is touched at the end: by then it has arrived.
      __builtin_prefetch(c + i * ldc + j * 16);
      acc[i][j] = _mm512_setzero_ps();
    }
  }
}

template <int MR, int NV>
MOETRAIN_INLINE void end_tile(const __m512 (&acc)[MR][NV], float* c, int64_t ldc, bool accumulate) {
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      float* to = c + i * ldc + j * 16;
      _mm512_storeu_ps(to, accumulate ? _mm512_add_ps(_mm512_loadu_ps(to), acc[i][j]) : acc[i][j]);
    }
  }
}

template <int MR, int NV>
void tile(int64_t k, const void* a_words, int64_t rs, int64_t cs, const void* b_words, int64_t ldb,
          float* c, int64_t ldc, bool accumulate) {
  const uint32_t* a = static_cast<const uint32_t*>(a_words);
  const uint32_t* b = static_cast<const uint32_t*>(b_words);
  __m512 acc[MR][NV];
  begin_tile<MR, NV>(c, ldc, acc);
  int64_t p = 0;
  if (cs == 1) {
    for (; p + 16 <= k; p += 16) {
#pragma GCC unroll 6
      for (int i = 0; i < MR; ++i) __builtin_prefetch(a + (MR + i) * rs + p);
      tile_steps<MR, NV>(0, 16, Strided{a + p, rs, 1}, b + p * ldb, ldb, acc);
    }
  }
  tile_steps<MR, NV>(0, k - p, Strided{a + p * cs, rs, cs}, b + p * ldb, ldb, acc);
  end_tile<MR, NV>(acc, c, ldc, accumulate);
}

template <int MR, int NV>
void gathered_tile(int64_t k, const void* a_rows, int64_t, int64_t, const void* b_words,
                   int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  const uint32_t* const* rows = static_cast<const uint32_t* const*>(a_rows);
  const uint32_t* b = static_cast<const uint32_t*>(b_words);
  Gathered<MR> a;
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) a.rows[i] = rows[i];
  __m512 acc[MR][NV];
  begin_tile<MR, NV>(c, ldc, acc);
  int64_t p = 0;
  for (; p + 16 <= k; p += 16) {
#pragma GCC unroll 6
    for (int i = 0; i < MR; ++i) __builtin_prefetch(rows[MR + i] + p);
    tile_steps<MR, NV>(p, p + 16, a, b, ldb, acc);
  }
  tile_steps<MR, NV>(p, k, a, b, ldb, acc);
  end_tile<MR, NV>(acc, c, ldc, accumulate);
}

template <int MR>
void fill_row(MicroSet& set) {
  set.kernel[MR - 1][0] = &tile<MR, 1>, set.gathered[MR - 1][0] = &gathered_tile<MR, 1>;
  set.kernel[MR - 1][1] = &tile<MR, 2>, set.gathered[MR - 1][1] = &gathered_tile<MR, 2>;
  set.kernel[MR - 1][2] = &tile<MR, 3>, set.gathered[MR - 1][2] = &gathered_tile<MR, 3>;
  set.kernel[MR - 1][3] = &tile<MR, 4>, set.gathered[MR - 1][3] = &gathered_tile<MR, 4>;
}

}  // namespace

bool bf16_dot_supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl");
}

void get_bf16_dot_kernels(MicroSet& set) {
  fill_row<1>(set);
  fill_row<2>(set);
  fill_row<3>(set);
  fill_row<4>(set);
  fill_row<5>(set);
  fill_row<6>(set);
}

}  // namespace moetrain::cpu

#else

namespace moetrain::cpu {

bool bf16_dot_supported() { return false; }
void get_bf16_dot_kernels(MicroSet&) {}

}  // namespace moetrain::cpu

#endif
