// Elementwise kernels: sums, casts, scaling and the gated activation, in one pass over memory each.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/gated-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

template <class X, class Y>
void scale_loop(const X* x, Y* y, float factor, int64_t n) {
  const VF f = set1(factor);
  for (int64_t i = 0; i < n; i += lanes()) store(hn::Mul(f, load(x + i, n - i)), y + i, n - i);
}

/// y = factor * x for elements [begin, end); the dtypes of x and y may differ.
void scale_range(const Tensor& x, const Tensor& y, float factor, int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  const float* x32 = x.as<const float>() + begin;
  const uint16_t* x16 = x.as<const uint16_t>() + begin;
  float* y32 = y.as<float>() + begin;
  uint16_t* y16 = y.as<uint16_t>() + begin;
  if (x.dtype == DType::kF32 && y.dtype == DType::kF32)
    scale_loop(x32, y32, factor, n);
  else if (x.dtype == DType::kF32)
    scale_loop(x32, y16, factor, n);
  else if (y.dtype == DType::kF32)
    scale_loop(x16, y32, factor, n);
  else
    scale_loop(x16, y16, factor, n);
}

/// sum_range where all are bf16.
void sum_bf16(std::span<const Tensor> in, uint16_t* y, int64_t begin, int64_t end) {
  by_two(begin, end, [=](int64_t i, auto n) HWY_ATTR {
    Two sum = load_two(in[0].as<const uint16_t>() + i, n);
    for (size_t t = 1; t < in.size(); ++t) {
      const Two v = load_two(in[t].as<const uint16_t>() + i, n);
      sum = {hn::Add(sum.a, v.a), hn::Add(sum.b, v.b)};
    }
    store_two(sum, y + i, n);
  });
}

/// y = in[0] + in[1] + ..., left to right, for elements [begin, end).
void sum_range(std::span<const Tensor> in, const Tensor& y, int64_t begin, int64_t end) {
  bool narrow = y.dtype == DType::kBF16;
  for (const Tensor& t : in) narrow = narrow && t.dtype == DType::kBF16;
  if (narrow) return sum_bf16(in, y.as<uint16_t>(), begin, end);
  for (int64_t i = begin; i < end; i += lanes()) {
    VF sum = load_any(in[0], i, end - i);
    for (size_t t = 1; t < in.size(); ++t) sum = hn::Add(sum, load_any(in[t], i, end - i));
    if (y.dtype == DType::kF32)
      store(sum, y.as<float>() + i, end - i);
    else
      store(sum, y.as<uint16_t>() + i, end - i);
  }
}

void swiglu_loop(const float* gate, const float* up, float* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += lanes())
    store(gated(y, load(gate + i, end - i), load(up + i, end - i)), y + i, end - i);
}

void swiglu_loop(const uint16_t* gate, const uint16_t* up, uint16_t* y, int64_t begin,
                 int64_t end) {
  by_two(begin, end, [=](int64_t i, auto n) HWY_ATTR {
    const Two g = load_two(gate + i, n), u = load_two(up + i, n);
    store_two({gated(y, g.a, u.a), gated(y, g.b, u.b)}, y + i, n);
  });
}

void swiglu_range(const Tensor& gate, const Tensor& up, const Tensor& y, int64_t begin,
                  int64_t end) {
  if (gate.dtype == DType::kF32)
    swiglu_loop(gate.as<const float>(), up.as<const float>(), y.as<float>(), begin, end);
  else
    swiglu_loop(gate.as<const uint16_t>(), up.as<const uint16_t>(), y.as<uint16_t>(), begin, end);
}

template <class T>
void swiglu_grad_loop(std::span<const Tensor> in, std::span<Tensor> out, int64_t begin,
                      int64_t end) {
  const T *dy = in[0].as<const T>(), *gate = in[1].as<const T>(), *up = in[2].as<const T>();
  T *dgate = out[0].as<T>(), *dup = out[1].as<T>();
  if constexpr (sizeof(T) == sizeof(float)) {
    for (int64_t i = begin; i < end; i += lanes()) {
      const int64_t n = end - i;
      const Gate g = gate_of(dy, load(gate + i, n));
      const VF d = load(dy + i, n);
      store(hn::Mul(hn::Mul(d, load(up + i, n)), g.slope), dgate + i, n);
      store(hn::Mul(d, g.silu), dup + i, n);
    }
  } else {
    by_two(begin, end, [=](int64_t i, auto n) HWY_ATTR {
      const Two g = load_two(gate + i, n), d = load_two(dy + i, n), u = load_two(up + i, n);
      const Gate a = gate_of(dy, g.a), b = gate_of(dy, g.b);
      store_two({hn::Mul(hn::Mul(d.a, u.a), a.slope), hn::Mul(hn::Mul(d.b, u.b), b.slope)},
                dgate + i, n);
      store_two({hn::Mul(d.a, a.silu), hn::Mul(d.b, b.silu)}, dup + i, n);
    });
  }
}

void swiglu_grad_range(std::span<const Tensor> in, std::span<Tensor> out, int64_t begin,
                       int64_t end) {
  if (in[0].dtype == DType::kF32)
    swiglu_grad_loop<float>(in, out, begin, end);
  else
    swiglu_grad_loop<uint16_t>(in, out, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(scale_range);
HWY_EXPORT(sum_range);
HWY_EXPORT(swiglu_range);
HWY_EXPORT(swiglu_grad_range);

namespace {

using Types = std::span<const Type>;

/// Elements per task: a few pages of each operand, a multiple of every vector length.
constexpr int64_t kGrain = 16384;

bool all_fast(Types types) {
  for (const Type& t : types) {
    if (!is_f32_or_bf16(t)) return false;
  }
  return true;
}

bool accepts_fast(const Attrs&, Types in, Types out) { return all_fast(in) && all_fast(out); }

bool accepts_one_dtype(const Attrs& attrs, Types in, Types out) {
  if (!accepts_fast(attrs, in, out)) return false;
  for (const Type& t : in) {
    if (t.dtype != in[0].dtype) return false;
  }
  for (const Type& t : out) {
    if (t.dtype != in[0].dtype) return false;
  }
  return true;
}

void scaled(const LaunchArgs& args, const Tensor& x, float factor) {
  args.pool.run_ranges(x.numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(scale_range)(x, args.out[0], factor, begin, end);
  });
}

void run_cast(const LaunchArgs& args) { scaled(args, args.in[0], 1.0f); }
void run_assign(const LaunchArgs& args) { scaled(args, args.in[1], 1.0f); }
void run_scale(const LaunchArgs& args) {
  scaled(args, args.in[0], static_cast<float>(args.attrs.real("factor")));
}

void run_sum(const LaunchArgs& args) {
  args.pool.run_ranges(args.in[0].numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(sum_range)(args.in, args.out[0], begin, end);
  });
}

void run_swiglu(const LaunchArgs& args) {
  args.pool.run_ranges(args.in[0].numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu_range)(args.in[0], args.in[1], args.out[0], begin, end);
  });
}

void run_swiglu_grad(const LaunchArgs& args) {
  args.pool.run_ranges(args.in[0].numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu_grad_range)(args.in, args.out, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"add", "add.vector", &accepts_fast, nullptr, &run_sum},
    {"add_n", "add_n.vector", &accepts_fast, nullptr, &run_sum},
    {"accumulate", "accumulate.vector", &accepts_fast, nullptr, &run_sum},
    {"cast", "cast.vector", &accepts_fast, nullptr, &run_cast},
    {"assign", "assign.vector", &accepts_fast, nullptr, &run_assign},
    {"scale", "scale.vector", &accepts_fast, nullptr, &run_scale},
    {"swiglu", "swiglu.vector", &accepts_one_dtype, nullptr, &run_swiglu},
    {"swiglu_grad", "swiglu_grad.vector", &accepts_one_dtype, nullptr, &run_swiglu_grad},
};

}  // namespace

std::span<const Kernel> elementwise_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
