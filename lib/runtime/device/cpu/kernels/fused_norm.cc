// RMSNorm together with the sums around it: the residual stream passes through memory once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gain_gradient.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/fused_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// x = a + b over one row (x may be a); returns the sum of squares, lane by lane, in the two chains of the
/// norm that stands alone: fused or not, the same bits.
template <class A, class B>
VF add_row(const A* a, const B* b, float* x, int64_t d) {
  const auto one = [&](int64_t i, VF squares) HWY_ATTR {
    const VF v = hn::Add(load(a + i, d - i), load(b + i, d - i));
    store(v, x + i, d - i);
    return hn::MulAdd(v, v, squares);
  };
  VF even = set1(0.0f), odd = set1(0.0f);
  for (int64_t i = 0; i < d; i += 2 * lanes()) {
    even = one(i, even);
    if (i + lanes() < d) odd = one(i + lanes(), odd);
  }
  return hn::Add(even, odd);
}

template <class A>
VF add_row_to(const A* a, const Tensor& b, int64_t at, float* x, int64_t d) {
  if (b.dtype == DType::kF32) return add_row(a, b.as<const float>() + at, x, d);
  return add_row(a, b.as<const uint16_t>() + at, x, d);
}

/// y = x rstd gain, and the same once more into `copy` unless that is null.
template <class Y>
void scale_row(const float* x, const float* gain, VF rstd, Y* y, uint16_t* copy, int64_t d) {
  for (int64_t i = 0; i < d; i += lanes()) {
    const VF v = hn::Mul(hn::Mul(load(x + i, d - i), rstd), load(gain + i, d - i));
    store(v, y + i, d - i);
    if (copy != nullptr) store(v, copy + i, d - i);
  }
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
    VF squares = in[0].dtype == DType::kF32
                     ? add_row_to(in[0].as<const float>() + at, in[1], at, x, d)
                     : add_row_to(in[0].as<const uint16_t>() + at, in[1], at, x, d);
    for (size_t t = 2; t < terms; ++t) squares = add_row_to<float>(x, in[t], at, x, d);
    const float rstd =
        static_cast<float>(1.0 / std::sqrt(sum_lanes(squares) / static_cast<double>(d) + eps));
    out[2].as<float>()[row] = rstd;
    uint16_t* copy = out.size() > 3 ? out[3].as<uint16_t>() + at : nullptr;
    if (out[1].dtype == DType::kF32)
      scale_row(x, gain, set1(rstd), out[1].as<float>() + at, copy, d);
    else
      scale_row(x, gain, set1(rstd), out[1].as<uint16_t>() + at, copy, d);
  }
}

/// sum = other + rstd (g dy - xhat mean(g dy xhat)); dgain += dy xhat over the rows.
template <class D>
void norm_grad_add_loop(std::span<const Tensor> in, std::span<Tensor> out, float* dgain,
                        int64_t begin, int64_t end) {
  const int64_t d = in[1].cols();
  const float *gain = in[2].as<const float>(), *rstd = in[3].as<const float>();
  uint16_t* copy = out.size() > 2 ? out[2].as<uint16_t>() : nullptr;
  std::memset(dgain, 0, d * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const D* dy = in[0].as<const D>() + row * d;
    const float *x = in[1].as<const float>() + row * d, *other = in[4].as<const float>() + row * d;
    float* sum = out[0].as<float>() + row * d;
    const VF r = set1(rstd[row]);
    VF dot = set1(0.0f);
    for (int64_t i = 0; i < d; i += lanes()) {
      const VF product = hn::Mul(load(dy + i, d - i), hn::Mul(load(x + i, d - i), r));
      dot = hn::MulAdd(product, load(gain + i, d - i), dot);
      store(hn::Add(load(dgain + i, d - i), product), dgain + i, d - i);
    }
    const VF mean = set1(sum_lanes(dot) / static_cast<float>(d));
    for (int64_t i = 0; i < d; i += lanes()) {
      const VF gdy = hn::Mul(load(dy + i, d - i), load(gain + i, d - i));
      const VF xhat = hn::Mul(load(x + i, d - i), r);
      const VF v = hn::Add(load(other + i, d - i), hn::Mul(r, hn::NegMulAdd(xhat, mean, gdy)));
      store(v, sum + i, d - i);
      if (copy != nullptr) store(v, copy + row * d + i, d - i);
    }
  }
}

void norm_grad_add_rows(std::span<const Tensor> in, std::span<Tensor> out, float* dgain,
                        int64_t begin, int64_t end) {
  if (in[0].dtype == DType::kF32)
    norm_grad_add_loop<float>(in, out, dgain, begin, end);
  else
    norm_grad_add_loop<uint16_t>(in, out, dgain, begin, end);
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
  return is_f32_or_bf16(in[0]) && (out.size() < 3 || out[2].dtype == DType::kBF16);
}

size_t grad_workspace(const Attrs&, Types in, Types, int) { return gain_workspace(in[1].shape); }

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
