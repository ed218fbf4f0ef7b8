// Register-tile products with the bf16 dot instruction; the only unit built with -mavx512bf16.
#include "runtime/device/cpu/kernels/micro.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace moetrain::cpu {
namespace {

template <int MR, int NV>
inline __attribute__((always_inline)) void tile_steps(int64_t k, const uint32_t* a, int64_t rs,
                                                      int64_t cs, const uint32_t* b, int64_t ldb,
                                                      __m512 (&acc)[MR][NV]) {
  for (int64_t p = 0; p < k; ++p) {
    __m512bh vb[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) vb[j] = (__m512bh)_mm512_loadu_si512(b + p * ldb + j * 16);
#pragma GCC unroll 6
    for (int i = 0; i < MR; ++i) {
      // Rows of an odd number of bf16 leave words at odd halves: an unaligned load.
      int word;
      __builtin_memcpy(&word, a + i * rs + p * cs, 4);
      const __m512bh va = (__m512bh)_mm512_set1_epi32(word);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], va, vb[j]);
    }
  }
}

template <int MR, int NV>
void tile(int64_t k, const void* a_words, int64_t rs, int64_t cs, const void* b_words, int64_t ldb,
          float* c, int64_t ldc, bool accumulate) {
  const uint32_t* a = static_cast<const uint32_t*>(a_words);
  const uint32_t* b = static_cast<const uint32_t*>(b_words);
  __m512 acc[MR][NV];
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      // C is touched at the end: by then it has arrived.
      __builtin_prefetch(c + i * ldc + j * 16);
      acc[i][j] = _mm512_setzero_ps();
    }
  }
  int64_t p = 0;
  if (cs == 1) {
    for (; p + 16 <= k; p += 16) {
#pragma GCC unroll 6
      for (int i = 0; i < MR; ++i) __builtin_prefetch(a + (MR + i) * rs + p);
      tile_steps<MR, NV>(16, a + p, rs, 1, b + p * ldb, ldb, acc);
    }
  }
  tile_steps<MR, NV>(k - p, a + p * cs, rs, cs, b + p * ldb, ldb, acc);
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      float* to = c + i * ldc + j * 16;
      _mm512_storeu_ps(to, accumulate ? _mm512_add_ps(_mm512_loadu_ps(to), acc[i][j]) : acc[i][j]);
    }
  }
}

template <int MR>
void fill_row(MicroKernel* row) {
  row[0] = &tile<MR, 1>;
  row[1] = &tile<MR, 2>;
  row[2] = &tile<MR, 3>;
  row[3] = &tile<MR, 4>;
}

}  // namespace

bool bf16_dot_supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl");
}

void get_bf16_dot_kernels(MicroKernel kernel[kTileRows][kMaxTileVectors]) {
  fill_row<1>(kernel[0]);
  fill_row<2>(kernel[1]);
  fill_row<3>(kernel[2]);
  fill_row<4>(kernel[3]);
  fill_row<5>(kernel[4]);
  fill_row<6>(kernel[5]);
}

}  // namespace moetrain::cpu

#else

namespace moetrain::cpu {

bool bf16_dot_supported() { return false; }
void get_bf16_dot_kernels(MicroKernel[kTileRows][kMaxTileVectors]) {}

}  // namespace moetrain::cpu

#endif
