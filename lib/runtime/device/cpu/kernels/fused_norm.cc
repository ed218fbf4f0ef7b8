// RMSNorm together with the sums around it: the residual stream passes through memory once.
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gain_gradient.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/fused_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// x = a + b for one vector.
template <class A, class B, class N>
HWY_INLINE VF add_vector(const A* a, const B* b, float* x, N n) {
  const VF v = hn::Add(load(a, n), load(b, n));
  store(v, x, n);
  return v;
}
#if HWY_TARGET == HWY_AVX3
/// In halves: from memory beyond the first caches two loads of 32 bytes per line and operand run 1.15
/// times as fast on Zen 4 as one of 64 (the second pass, which reads the first-level cache, does not).
HWY_INLINE VF add_vector(const float* a, const float* b, float* x, Whole) {
  const hn::Half<DF> half;
  const auto low = hn::Add(hn::LoadU(half, a), hn::LoadU(half, b));
  const auto high = hn::Add(hn::LoadU(half, a + 8), hn::LoadU(half, b + 8));
  hn::StoreU(low, half, x);
  hn::StoreU(high, half, x + 8);
  return hn::Combine(DF(), high, low);
}
#endif

/// x = a + b over one row (x may be a); returns the sum of squares.
template <class A, class B>
float add_row(const A* a, const B* b, float* x, int64_t d) {
  return sum_of_squares(d, [=](int64_t i, auto n) HWY_ATTR {
    return add_vector(a + i, b + i, x + i, n);
  });
}

template <class A>
float add_row_to(const A* a, const Tensor& b, int64_t at, float* x, int64_t d) {
  if (b.dtype == DType::kF32) return add_row(a, b.as<const float>() + at, x, d);
  return add_row(a, b.as<const uint16_t>() + at, x, d);
}

/// Operands: terms, gain; results: sum (f32), y, rstd and perhaps a copy of y.
void add_norm_rows(std::span<const Tensor> in, std::span<Tensor> out, double eps, int64_t begin,
                   int64_t end) {
  const size_t terms = in.size() - 1;
  const float* gain = in[terms].as<const float>();
  const int64_t d = in[0].cols();
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * d;
    float* x = out[0].as<float>() + at;
    float squares = in[0].dtype == DType::kF32
                        ? add_row_to(in[0].as<const float>() + at, in[1], at, x, d)
                        : add_row_to(in[0].as<const uint16_t>() + at, in[1], at, x, d);
    for (size_t t = 2; t < terms; ++t) squares = add_row_to<float>(x, in[t], at, x, d);
    const float rstd = rstd_of(squares, d, eps);
    out[2].as<float>()[row] = rstd;
    uint16_t* copy = out.size() > 3 ? out[3].as<uint16_t>() + at : nullptr;
    if (out[1].dtype == DType::kF32)
      scale_row(x, gain, rstd, out[1].as<float>() + at, copy, d);
    else
      scale_row(x, gain, rstd, out[1].as<uint16_t>() + at, copy, d);
  }
}

/// sum = other + dx, perhaps with a copy.
template <class Dy>
HWY_INLINE void norm_grad_add_loop(const Dy& dy, std::span<const Tensor> in, std::span<Tensor> out,
                                   float* dgain, int64_t begin, int64_t end) {
  const int64_t d = in[1].cols();
  const float* other = in[4].as<const float>();
  float* sum = out[0].as<float>();
  uint16_t* copy = out.size() > 2 ? out[2].as<uint16_t>() : nullptr;
  norm_grad_loop(dy, in[1].as<const float>(), d, in[2].as<const float>(),
                 in[3].as<const float>(), dgain, d, begin, end,
                 [=](int64_t row, int64_t i, auto n, VF dx) HWY_ATTR {
                   const int64_t at = row * d + i;
                   const VF v = hn::Add(load(other + at, n), dx);
                   store(v, sum + at, n);
                   if (copy != nullptr) store(v, copy + at, n);
                 });
}

void norm_grad_add_rows(std::span<const Tensor> in, std::span<Tensor> out, float* dgain,
                        int64_t begin, int64_t end) {
  const float* dy32 = in[0].as<const float>();
  const uint16_t* dy16 = in[0].as<const uint16_t>();
  if (in.size() > 5) {
    norm_grad_add_loop(
        [=](int64_t at, auto n) HWY_ATTR {
          VF sum = load_any(in[0], at, n);
          for (size_t t = 5; t < in.size(); ++t) sum = hn::Add(sum, load_any(in[t], at, n));
          return sum;
        },
        in, out, dgain, begin, end);
  } else if (in[0].dtype == DType::kF32) {
    norm_grad_add_loop(dy32, in, out, dgain, begin, end);
  } else {
    norm_grad_add_loop(dy16, in, out, dgain, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(add_norm_rows);
HWY_EXPORT(norm_grad_add_rows);

namespace {

using Types = std::span<const Type>;

bool accepts_norm(const Attrs&, Types in, Types out) {
  for (const Type& t : in) {
    if (!is_f32_or_bf16(t)) return false;
  }
  return in.back().dtype == DType::kF32 && out[0].dtype == DType::kF32 && is_f32_or_bf16(out[1]) &&
         (out.size() < 4 || out[3].dtype == DType::kBF16);
}

bool accepts_grad(const Attrs&, Types in, Types out) {
  for (size_t i = 1; i < 5; ++i) {
    if (in[i].dtype != DType::kF32) return false;
  }
  for (const Type& more : in.subspan(5)) {
    if (!is_f32_or_bf16(more)) return false;
  }
  return is_f32_or_bf16(in[0]) && (out.size() < 3 || out[2].dtype == DType::kBF16);
}

size_t grad_workspace(const Attrs&, Types in, Types, int) { return gain_workspace(in[0].shape); }

void run_add_norm(const LaunchArgs& args) {
  const double eps = args.attrs.real("eps");
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.in[0].cols()));
  args.pool.run_ranges(args.in[0].rows(), grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(add_norm_rows)(args.in, args.out, eps, begin, end);
  });
}

void run_grad_add(const LaunchArgs& args) {
  run_gain_gradient(args, [&](float* dgain, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_grad_add_rows)(args.in, args.out, dgain, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"add_rms_norm", "add_rms_norm.vector", &accepts_norm, nullptr, &run_add_norm},
    {"rms_norm_grad_add", "rms_norm_grad_add.vector", &accepts_grad, &grad_workspace,
     &run_grad_add},
};

}  // namespace

std::span<const Kernel> fused_norm_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
