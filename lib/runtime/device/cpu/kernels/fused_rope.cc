// The latent's norm with the shared key's rotation: the joint value passes through memory once.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gain_gradient.h"
#include "runtime/device/cpu/kernels/rope.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/fused_rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/norm-inl.h"
#include "runtime/device/cpu/kernels/rope-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// One row from a tensor of either width into one of either width.
HWY_INLINE void turn_row(const RopeTurns& turns, double position, const Tensor& x, int64_t from,
                         const Tensor& y, int64_t to) {
  const float* x32 = x.as<const float>() + from;
  const uint16_t* x16 = x.as<const uint16_t>() + from;
  float* y32 = y.as<float>() + to;
  uint16_t* y16 = y.as<uint16_t>() + to;
  if (x.dtype == DType::kF32 && y.dtype == DType::kF32)
    turn_heads(turns, position, x32, 0, y32, 0, 1);
  else if (x.dtype == DType::kF32)
    turn_heads(turns, position, x32, 0, y16, 0, 1);
  else if (y.dtype == DType::kF32)
    turn_heads(turns, position, x16, 0, y32, 0, 1);
  else
    turn_heads(turns, position, x16, 0, y16, 0, 1);
}

/// Operands: joint (f32), gain, positions; results: y, rstd, k.
void norm_rope_rows(const RopeTurns& turns, std::span<const Tensor> in, std::span<Tensor> out,
                    double eps, int64_t begin, int64_t end) {
  const int64_t pitch = in[0].cols(), d = in[1].numel(), turned = pitch - d;
  const float* gain = in[1].as<const float>();
  float* rstd = out[1].as<float>();
  for (int64_t row = begin; row < end; ++row) {
    const float* x = in[0].as<const float>() + row * pitch;
    rstd[row] = rstd_of(
        sum_of_squares(d, [x](int64_t i, auto n) HWY_ATTR { return load(x + i, n); }), d, eps);
    if (out[0].dtype == DType::kF32)
      scale_row(x, gain, rstd[row], out[0].as<float>() + row * d, nullptr, d);
    else
      scale_row(x, gain, rstd[row], out[0].as<uint16_t>() + row * d, nullptr, d);
    turn_row(turns, in[2].as<const int32_t>()[row], in[0], row * pitch + d, out[2], row * turned);
  }
}

template <class D, class Y>
void norm_rope_grad_loop(std::span<const Tensor> in, std::span<Tensor> out, float* dgain,
                         int64_t begin, int64_t end) {
  const int64_t width = out[0].cols();
  Y* joint = out[0].as<Y>();
  uint16_t* copy = out.size() > 2 ? out[2].as<uint16_t>() : nullptr;
  norm_grad_loop(in[0].as<const D>(), in[1].as<const float>(), in[1].cols(),
                 in[2].as<const float>(), in[3].as<const float>(), dgain, in[0].cols(), begin, end,
                 [=](int64_t row, int64_t i, auto n, VF dx) HWY_ATTR {
                   store(dx, joint + row * width + i, n);
                   if (copy != nullptr) store(dx, copy + row * width + i, n);
                 });
}

/// Operands: dy, x (f32), gain, rstd, dk, positions; results: djoint, dgain, perhaps a copy of djoint.
void norm_rope_grad_rows(const RopeTurns& turns, std::span<const Tensor> in, std::span<Tensor> out,
                         float* dgain, int64_t begin, int64_t end) {
  const bool wide = out[0].dtype == DType::kF32;
  if (in[0].dtype == DType::kF32 && wide)
    norm_rope_grad_loop<float, float>(in, out, dgain, begin, end);
  else if (in[0].dtype == DType::kF32)
    norm_rope_grad_loop<float, uint16_t>(in, out, dgain, begin, end);
  else if (wide)
    norm_rope_grad_loop<uint16_t, float>(in, out, dgain, begin, end);
  else
    norm_rope_grad_loop<uint16_t, uint16_t>(in, out, dgain, begin, end);
  const int64_t d = in[0].cols(), width = out[0].cols(), turned = width - d;
  for (int64_t row = begin; row < end; ++row) {
    const double position = in[5].as<const int32_t>()[row];
    turn_row(turns, position, in[4], row * turned, out[0], row * width + d);
    if (out.size() > 2) turn_row(turns, position, in[4], row * turned, out[2], row * width + d);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(norm_rope_rows);
HWY_EXPORT(norm_rope_grad_rows);

namespace {

using Types = std::span<const Type>;

bool accepts_norm_rope(const Attrs&, Types in, Types out) {
  return in[0].dtype == DType::kF32 && in[1].dtype == DType::kF32 && is_f32_or_bf16(out[0]) &&
         is_f32_or_bf16(out[2]);
}

bool accepts_grad(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && in[1].dtype == DType::kF32 && in[2].dtype == DType::kF32 &&
         is_f32_or_bf16(in[4]) && is_f32_or_bf16(out[0]) &&
         (out.size() < 3 || out[2].dtype == DType::kBF16);
}

size_t grad_workspace(const Attrs&, Types in, Types, int) { return gain_workspace(in[0].shape); }

void run_norm_rope(const LaunchArgs& args) {
  const double eps = args.attrs.real("eps");
  const RopeTurns turns = rope_turns(args.attrs);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.in[0].cols()));
  args.pool.run_ranges(args.in[0].rows(), grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(norm_rope_rows)(turns, args.in, args.out, eps, begin, end);
  });
}

void run_grad(const LaunchArgs& args) {
  const RopeTurns turns = rope_turns(args.attrs);
  run_gain_gradient(args, [&](float* dgain, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_rope_grad_rows)(turns, args.in, args.out, dgain, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"norm_rope", "norm_rope.vector", &accepts_norm_rope, nullptr, &run_norm_rope},
    {"norm_rope_grad", "norm_rope_grad.vector", &accepts_grad, &grad_workspace, &run_grad},
};

}  // namespace

std::span<const Kernel> fused_rope_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
