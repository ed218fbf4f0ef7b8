// The float probe, on the instruction set the kernels use.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/bench_probe.h"

#include <atomic>

#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/bench_probe.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

double peak_loop(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  // Ten chains hide the latency on every core and fit sixteen registers.
  constexpr int kChains = 10;
  hn::Vec<decltype(d)> acc[kChains];
  const auto a = hn::Set(d, 0.5f), b = hn::Set(d, 1.0f);
#pragma GCC unroll 10
  for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 10
    for (int i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], a, b);
  }
  auto sum = acc[0];
#pragma GCC unroll 10
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, acc[i]);
  *sink = hn::GetLane(sum);
  return static_cast<double>(rounds) * kChains * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(peak_loop);

double float_peak_loop(int64_t rounds) {
  volatile float kept = 0;
  float sink = 0;
  const double flops = HWY_DYNAMIC_DISPATCH(peak_loop)(rounds, &sink);
  kept = sink;
  (void)kept;
  return flops;
}

}  // namespace moetrain::cpu
#endif
