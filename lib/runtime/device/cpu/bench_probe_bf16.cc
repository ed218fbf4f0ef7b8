// The bf16 probe; built with -mavx512bf16 like the kernels it is compared with.
#include "runtime/device/cpu/bench_probe.h"
#include "runtime/device/cpu/kernels/micro.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace moetrain::cpu {

double bf16_peak_loop(int64_t rounds) {
  if (!bf16_dot_supported()) return 0;
  constexpr int kChains = 20;
  __m512 acc[kChains];
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f00), b = (__m512bh)_mm512_set1_epi16(0x3f80);
#pragma GCC unroll 20
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 20
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  }
  __m512 sum = acc[0];
#pragma GCC unroll 20
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  volatile float kept = _mm512_cvtss_f32(sum);
  (void)kept;
  return static_cast<double>(rounds) * kChains * 64;
}

}  // namespace moetrain::cpu

#else

namespace moetrain::cpu {

double bf16_peak_loop(int64_t) { return 0; }

}  // namespace moetrain::cpu

#endif
