// The optimizer's streaming kernels: clear, sum of squares in fixed blocks, AdamW in one pass.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/update.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

#ifndef MOETRAIN_ADAMW_ARGS
#define MOETRAIN_ADAMW_ARGS
namespace moetrain::cpu {
/// One AdamW launch: tensors, and the scalars as the inner loop wants them.
struct AdamwArgs {
  const float *p, *m, *v, *g;
  float *p_out, *m_out, *v_out;
  uint16_t* copy;  // bf16, may be null
  float factor, beta1, beta2, rest1, rest2, decay, rate1, inverse2, eps;
};
}  // namespace moetrain::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE double to_double(float x) { return x; }
HWY_INLINE double to_double(uint16_t x) { return bf16_to_float(x); }

template <class T>
double squares(const T* x, int64_t n) {
  // The compiler makes vectors of the chains: enough of them that they do not wait for one another,
  // and the order stays the same everywhere.
  constexpr int kChains = 32;
  double chain[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int j = 0; j < kChains; ++j) {
      const double v = to_double(x[i + j]);
      chain[j] += v * v;
    }
  }
  for (; i < n; ++i) chain[i % kChains] += to_double(x[i]) * to_double(x[i]);
  for (int half = kChains / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) chain[j] += chain[j + half];
  }
  return chain[0];
}

double squares_range(const Tensor& x, int64_t begin, int64_t end) {
  if (x.dtype == DType::kF32) return squares(x.as<const float>() + begin, end - begin);
  return squares(x.as<const uint16_t>() + begin, end - begin);
}

void adamw_range(const AdamwArgs& a, int64_t begin, int64_t end) {
  const VF factor = set1(a.factor), beta1 = set1(a.beta1), beta2 = set1(a.beta2),
           decay = set1(a.decay);
  const VF rest1 = set1(a.rest1), rest2 = set1(a.rest2), rate1 = set1(a.rate1);
  const VF inverse2 = set1(a.inverse2), eps = set1(a.eps);
  for (int64_t i = begin; i < end; i += lanes()) {
    const int64_t n = end - i;
    const VF g = hn::Mul(factor, load(a.g + i, n));
    const VF m = hn::MulAdd(beta1, load(a.m + i, n), hn::Mul(rest1, g));
    const VF v = hn::MulAdd(beta2, load(a.v + i, n), hn::Mul(rest2, hn::Mul(g, g)));
    const VF root = hn::Add(hn::Sqrt(hn::Mul(v, inverse2)), eps);
    const VF step = hn::Div(hn::Mul(rate1, m), root);
    const VF p = load(a.p + i, n);
    const VF updated = hn::Sub(hn::NegMulAdd(decay, p, p), step);
    store(updated, a.p_out + i, n);
    if (a.copy != nullptr) store(updated, a.copy + i, n);
    store(m, a.m_out + i, n);
    store(v, a.v_out + i, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(squares_range);
HWY_EXPORT(adamw_range);

namespace {

using Types = std::span<const Type>;

constexpr int64_t kGrain = 16384;
/// Elements summed in one piece: fixed, so that threads do not change a bit.
constexpr int64_t kBlock = 8192;

bool always(const Attrs&, Types, Types) { return true; }

bool accepts_sum(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && out[0].dtype == DType::kF32;
}

bool accepts_adamw(const Attrs&, Types in, Types) {
  for (const Type& t : in.first(6)) {
    if (t.dtype != DType::kF32) return false;
  }
  return in.size() < 7 || in[6].dtype == DType::kBF16;
}

void run_clear(const LaunchArgs& args) {
  std::byte* data = args.out[0].as<std::byte>();
  args.pool.run_ranges(args.out[0].bytes(), 1 << 17, [&](int64_t begin, int64_t end, int) {
    std::memset(data + begin, 0, end - begin);
  });
}

size_t sum_workspace(const Attrs&, Types in, Types, int) {
  return kCarverSlack + round_up_64(ceil_div(numel(in[0].shape), kBlock) * sizeof(double));
}

void run_sum_squares(const LaunchArgs& args) {
  const int64_t n = args.in[0].numel(), blocks = ceil_div(n, kBlock);
  double* partial = Carver(args).take<double>(blocks);
  args.pool.run_ranges(blocks, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      partial[b] = HWY_DYNAMIC_DISPATCH(squares_range)(args.in[0], b * kBlock,
                                                       std::min(n, (b + 1) * kBlock));
    }
  });
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += partial[b];
  *args.out[0].as<float>() = static_cast<float>(sum);
}

void keep_state(const LaunchArgs& args) {
  if (args.out.size() > 3 && args.in[6].data != args.out[3].data) {
    std::memcpy(args.out[3].data, args.in[6].data, args.in[6].bytes());
  }
  for (int i = 0; i < 3; ++i) {
    if (args.in[i].data != args.out[i].data) {
      std::memcpy(args.out[i].data, args.in[i].data, args.in[i].bytes());
    }
  }
}

void run_adamw(const LaunchArgs& args) {
  const float factor = *args.in[4].as<const float>();
  if (!(factor >= 0)) return keep_state(args);
  const float* hyper = args.in[5].as<const float>();
  const double rate = hyper[0], correct1 = hyper[1], correct2 = hyper[2];
  AdamwArgs a;
  a.p = args.in[0].as<const float>(), a.m = args.in[1].as<const float>();
  a.v = args.in[2].as<const float>(), a.g = args.in[3].as<const float>();
  a.p_out = args.out[0].as<float>(), a.m_out = args.out[1].as<float>();
  a.v_out = args.out[2].as<float>();
  a.copy = args.out.size() > 3 ? args.out[3].as<uint16_t>() : nullptr;
  a.factor = factor;
  a.beta1 = static_cast<float>(args.attrs.real("beta1"));
  a.beta2 = static_cast<float>(args.attrs.real("beta2"));
  a.rest1 = static_cast<float>(1 - args.attrs.real("beta1"));
  a.rest2 = static_cast<float>(1 - args.attrs.real("beta2"));
  a.decay = static_cast<float>(rate * args.attrs.real("decay"));
  a.rate1 = static_cast<float>(rate / correct1);
  a.inverse2 = static_cast<float>(1 / correct2);
  a.eps = static_cast<float>(args.attrs.real("eps"));
  args.pool.run_ranges(args.in[0].numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(adamw_range)(a, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"clear", "clear.fill", &always, nullptr, &run_clear},
    {"sum_squares", "sum_squares.blocks", &accepts_sum, &sum_workspace, &run_sum_squares},
    {"adamw", "adamw.vector", &accepts_adamw, nullptr, &run_adamw},
};

}  // namespace

std::span<const Kernel> update_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
