// RMSNorm forward and backward: one row at a time, in registers and first-level cache.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cmath>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gain_gradient.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// Sum of squares, lane by lane, in two chains.
template <class X>
HWY_INLINE VF squares_of(const X* x, int64_t d) {
  VF even = set1(0.0f), odd = set1(0.0f);
  by_two(0, d, [&](int64_t i, auto n) HWY_ATTR {
    const Two v = load_two(x + i, n);
    even = hn::MulAdd(v.a, v.a, even);
    odd = hn::MulAdd(v.b, v.b, odd);
  });
  return hn::Add(even, odd);
}

template <class X, class Y>
void norm_loop(const X* x, const float* gain, Y* y, float* rstd, int64_t d, double eps,
               int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const X* from = x + row * d;
    Y* to = y + row * d;
    const float r = static_cast<float>(
        1.0 / std::sqrt(sum_lanes(squares_of(from, d)) / static_cast<double>(d) + eps));
    rstd[row] = r;
    const VF scale = set1(r);
    int64_t i = 0;
    for (; i + lanes() <= d; i += lanes())
      store(hn::Mul(hn::Mul(load(from + i), scale), load(gain + i)), to + i);
    if (i < d)
      store(hn::Mul(hn::Mul(load(from + i, d - i), scale), load(gain + i, d - i)), to + i, d - i);
  }
}

void norm_rows(std::span<const Tensor> in, std::span<Tensor> out, double eps, int64_t begin,
               int64_t end) {
  const float* gain = in[1].as<const float>();
  float* rstd = out[1].as<float>();
  const int64_t d = in[0].cols();
  if (in[0].dtype == DType::kBF16) {
    norm_loop(in[0].as<const uint16_t>(), gain, out[0].as<uint16_t>(), rstd, d, eps, begin, end);
  } else if (out[0].dtype == DType::kBF16) {
    norm_loop(in[0].as<const float>(), gain, out[0].as<uint16_t>(), rstd, d, eps, begin, end);
  } else {
    norm_loop(in[0].as<const float>(), gain, out[0].as<float>(), rstd, d, eps, begin, end);
  }
}

/// dx = rstd (g dy - xhat mean(g dy xhat)), xhat = x rstd; dgain += dy xhat over the rows.
template <class D, class X>
void norm_grad_loop(const D* dy, const X* x, const float* gain, const float* rstd, X* dx,
                    float* dgain, int64_t d, int64_t begin, int64_t end) {
  std::memset(dgain, 0, d * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const D* dy_row = dy + row * d;
    const X* x_row = x + row * d;
    X* dx_row = dx + row * d;
    const VF r = set1(rstd[row]);
    VF dot = set1(0.0f);
    for (int64_t i = 0; i < d; i += lanes()) {
      const VF dyi = load(dy_row + i, d - i), xhat = hn::Mul(load(x_row + i, d - i), r);
      const VF product = hn::Mul(dyi, xhat);
      dot = hn::MulAdd(product, load(gain + i, d - i), dot);
      store(hn::Add(load(dgain + i, d - i), product), dgain + i, d - i);
    }
    const VF mean = set1(sum_lanes(dot) / static_cast<float>(d));
    for (int64_t i = 0; i < d; i += lanes()) {
      const VF gdy = hn::Mul(load(dy_row + i, d - i), load(gain + i, d - i));
      const VF xhat = hn::Mul(load(x_row + i, d - i), r);
      store(hn::Mul(r, hn::NegMulAdd(xhat, mean, gdy)), dx_row + i, d - i);
    }
  }
}

template <class D, class X>
void norm_grad_typed(std::span<const Tensor> in, std::span<Tensor> out, float* dgain, int64_t begin,
                     int64_t end) {
  norm_grad_loop(in[0].as<const D>(), in[1].as<const X>(), in[2].as<const float>(),
                 in[3].as<const float>(), out[0].as<X>(), dgain, in[1].cols(), begin, end);
}

void norm_grad_rows(std::span<const Tensor> in, std::span<Tensor> out, float* dgain, int64_t begin,
                    int64_t end) {
  const bool wide_dy = in[0].dtype == DType::kF32;
  if (in[1].dtype == DType::kF32) {
    if (wide_dy)
      norm_grad_typed<float, float>(in, out, dgain, begin, end);
    else
      norm_grad_typed<uint16_t, float>(in, out, dgain, begin, end);
  } else {
    if (wide_dy)
      norm_grad_typed<float, uint16_t>(in, out, dgain, begin, end);
    else
      norm_grad_typed<uint16_t, uint16_t>(in, out, dgain, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(norm_rows);
HWY_EXPORT(norm_grad_rows);

namespace {

using Types = std::span<const Type>;

bool accepts_norm(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && in[1].dtype == DType::kF32 && is_f32_or_bf16(out[0]) &&
         (out[0].dtype == in[0].dtype || in[0].dtype == DType::kF32);
}

bool accepts_grad(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && is_f32_or_bf16(in[1]) && in[2].dtype == DType::kF32 &&
         out[0].dtype == in[1].dtype;
}

size_t grad_workspace(const Attrs&, Types in, Types, int) { return gain_workspace(in[1].shape); }

void run_norm(const LaunchArgs& args) {
  const double eps = args.attrs.real("eps");
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.in[0].cols()));
  args.pool.run_ranges(args.in[0].rows(), grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(norm_rows)(args.in, args.out, eps, begin, end);
  });
}

void run_norm_grad(const LaunchArgs& args) {
  run_gain_gradient(args, [&](float* dgain, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_grad_rows)(args.in, args.out, dgain, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"rms_norm", "rms_norm.vector", &accepts_norm, nullptr, &run_norm},
    {"rms_norm_grad", "rms_norm_grad.vector", &accepts_grad, &grad_workspace, &run_norm_grad},
};

}  // namespace

std::span<const Kernel> norm_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
