// RMSNorm forward and backward: one row at a time, in registers and first-level cache.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gain_gradient.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/norm-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

template <class X, class Y>
void norm_loop(const X* x, const float* gain, Y* y, float* rstd, int64_t d, double eps,
               int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const X* from = x + row * d;
    rstd[row] = rstd_of(
        sum_of_squares(d, [from](int64_t i, auto n) HWY_ATTR { return load(from + i, n); }), d, eps);
    scale_row(from, gain, rstd[row], y + row * d, nullptr, d);
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

template <class D, class X, class Y>
void norm_grad_typed(std::span<const Tensor> in, std::span<Tensor> out, float* dgain, int64_t begin,
                     int64_t end) {
  const int64_t d = in[1].cols();
  Y* dx = out[0].as<Y>();
  norm_grad_loop(in[0].as<const D>(), in[1].as<const X>(), d, in[2].as<const float>(),
                 in[3].as<const float>(), dgain, d, begin, end,
                 [=](int64_t row, int64_t i, auto n, VF v)
                     HWY_ATTR { store(v, dx + row * d + i, n); });
}

template <class D>
void norm_grad_of(std::span<const Tensor> in, std::span<Tensor> out, float* dgain, int64_t begin,
                  int64_t end) {
  if (in[1].dtype == DType::kBF16)
    norm_grad_typed<D, uint16_t, uint16_t>(in, out, dgain, begin, end);
  else if (out[0].dtype == DType::kBF16)
    norm_grad_typed<D, float, uint16_t>(in, out, dgain, begin, end);
  else
    norm_grad_typed<D, float, float>(in, out, dgain, begin, end);
}

void norm_grad_rows(std::span<const Tensor> in, std::span<Tensor> out, float* dgain, int64_t begin,
                    int64_t end) {
  if (in[0].dtype == DType::kF32)
    norm_grad_of<float>(in, out, dgain, begin, end);
  else
    norm_grad_of<uint16_t>(in, out, dgain, begin, end);
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
         is_f32_or_bf16(out[0]) && (out[0].dtype == in[1].dtype || in[1].dtype == DType::kF32);
}

size_t grad_workspace(const Attrs&, Types in, Types, int) { return gain_workspace(in[0].shape); }

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
