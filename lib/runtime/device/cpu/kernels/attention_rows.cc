// Vector loops over scores and rows, on every instruction set.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/attention_rows.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/attention_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/pairs-inl.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// Which lanes of the queries at `q` see `key`.
HWY_INLINE hn::Mask<DF> seen(const BlockView& view, int64_t q, int64_t key) {
  const hn::RebindToSigned<DF> d32;
  const auto z = hn::Set(d32, static_cast<int32_t>(key));
  const auto inside = hn::AndNot(hn::VecFromMask(d32, hn::Gt(hn::LoadU(d32, view.begin + q), z)),
                                 hn::VecFromMask(d32, hn::Gt(hn::LoadU(d32, view.end + q), z)));
  return hn::MaskFromVec(hn::BitCast(DF(), inside));
}

/// Keys of a run that the queries of a vector see, in whole pairs: none in [0, begin), some in
/// [begin, full), all in [full, rest), some in [rest, end), none behind.
struct Parts {
  int64_t begin, full, rest, end;
  Parts(const LaneRange& r, int64_t first_key, int64_t keys) {
    const int64_t b = std::clamp<int64_t>(r.begin - first_key, 0, keys);
    const int64_t e = std::clamp<int64_t>(r.end - first_key, b, keys);
    const int64_t cb = std::clamp<int64_t>(r.common_begin - first_key, b, e);
    const int64_t ce = std::clamp<int64_t>(r.common_end - first_key, cb, e);
    begin = b / 2 * 2, end = std::max(begin, (e + 1) / 2 * 2);
    full = std::min((cb + 1) / 2 * 2, end), rest = std::max(full, ce / 2 * 2);
  }
};

template <bool kMasked>
HWY_INLINE VF highest(const SoftmaxRun& run, int64_t c, int64_t begin, int64_t end, VF top) {
  const VF lowest = set1(-std::numeric_limits<float>::infinity());
  VF other = top;
  for (int64_t r = begin; r < end; r += 2) {
    const float* s = run.scores + r * run.pitch + c;
    VF a = load(s), b = load(s + run.pitch);
    if (kMasked) {
      a = hn::IfThenElse(seen(run.view, c, run.first_key + r), a, lowest);
      b = hn::IfThenElse(seen(run.view, c, run.first_key + r + 1), b, lowest);
    }
    top = hn::Max(top, a), other = hn::Max(other, b);
  }
  return hn::Max(top, other);
}

template <bool kMasked>
HWY_INLINE void powers(const SoftmaxRun& run, int64_t c, int64_t begin, int64_t end, VF factor,
                       VF shift, Two& sum) {
  for (int64_t r = begin; r < end; r += 2) {
    float* s = run.scores + r * run.pitch + c;
    VF a = exp2_below(hn::MulAdd(factor, load(s), shift));
    VF b = exp2_below(hn::MulAdd(factor, load(s + run.pitch), shift));
    if (kMasked) {
      a = hn::IfThenElseZero(seen(run.view, c, run.first_key + r), a);
      b = hn::IfThenElseZero(seen(run.view, c, run.first_key + r + 1), b);
    }
    sum.a = hn::Add(sum.a, a), sum.b = hn::Add(sum.b, b);
    if (run.pairs)
      store_two(Two{a, b}, reinterpret_cast<uint16_t*>(run.pairs + r / 2 * run.pairs_pitch + c));
    else
      store(a, s), store(b, s + run.pitch);
  }
}

/// Zeros in rows [begin, end), whole pairs.
void no_powers(const SoftmaxRun& run, int64_t c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; r += 2) {
    float* s = run.scores + r * run.pitch + c;
    if (run.pairs)
      store(set1(0.0f), reinterpret_cast<float*>(run.pairs + r / 2 * run.pairs_pitch + c));
    else
      store(set1(0.0f), s), store(set1(0.0f), s + run.pitch);
  }
}

void softmax_run(const SoftmaxRun& run) {
  const VF scale = set1(run.scale), factor = set1(run.scale * kLog2E);
  for (int64_t v = 0, c = 0; v < run.vectors; ++v, c += lanes()) {
    const Parts part(run.view.lanes[v], run.first_key, run.keys);
    no_powers(run, c, 0, part.begin);
    no_powers(run, c, part.end, (run.keys + 1) / 2 * 2);
    if (part.begin == part.end) {
      store(set1(1.0f), run.shrink + c);
      continue;
    }
    const VF old = load(run.maximum + c);
    VF now = highest<true>(run, c, part.begin, part.full, old);
    now = highest<false>(run, c, part.full, part.rest, now);
    now = highest<true>(run, c, part.rest, part.end, now);
    const VF shift = hn::Neg(hn::Mul(factor, now));
    Two sum{set1(0.0f), set1(0.0f)};
    powers<true>(run, c, part.begin, part.full, factor, shift, sum);
    powers<false>(run, c, part.full, part.rest, factor, shift, sum);
    powers<true>(run, c, part.rest, part.end, factor, shift, sum);
    const VF shrink =
        hn::IfThenElse(hn::Eq(old, now), set1(1.0f), exp(hn::Mul(scale, hn::Sub(old, now))));
    store(now, run.maximum + c);
    store(shrink, run.shrink + c);
    store(hn::MulAdd(load(run.sum + c), shrink, hn::Add(sum.a, sum.b)), run.sum + c);
  }
}

/// What the queries of one vector bring along.
struct Query {
  VF shift, delta;
  hn::Mask<DF> several;  ///< sees more than one key
};

/// 2^t for t <= 1 or so, to 8e-5, a twentieth of what rounding to bf16 loses.
HWY_INLINE VF quick_exp2_below(VF t) {
  const VF y = at_least(t, set1(-126.0f));
  const VF shifted = hn::Add(y, set1(kRounder));
  const VF f = hn::Sub(y, hn::Sub(shifted, set1(kRounder)));
  VF p = set1(5.5171669e-2f);
  p = hn::MulAdd(p, f, set1(2.4261112e-1f));
  p = hn::MulAdd(p, f, set1(6.9326098e-1f));
  p = hn::MulAdd(p, f, set1(9.9992807e-1f));
  return hn::Mul(p, power_of(shifted));
}
HWY_INLINE VF probability(VF t, const float*) { return exp2_below(t); }
HWY_INLINE VF probability(VF t, const uint16_t*) { return quick_exp2_below(t); }

struct Gradient {
  VF p, ds;
};
template <bool kMasked, class T>
HWY_INLINE Gradient gradient_of(const GradientTile& t, const Query& q, VF power, int64_t r,
                                int64_t c, const T* type) {
  const int64_t at = r * t.pitch + c;
  VF p = probability(hn::MulAdd(power, load(t.s + at), q.shift), type);
  VF ds = hn::Mul(p, hn::Sub(load(t.dp + at), q.delta));
  if (kMasked) {
    const auto mask = seen(t.view, c, t.first_key + r);
    p = hn::IfThenElseZero(mask, p);
    // The only key of a query has probability one whatever its score: no rounding noise for it.
    ds = hn::IfThenElseZero(hn::And(mask, q.several), ds);
  }
  return {p, ds};
}

template <bool kMasked, class T>
HWY_INLINE void gradient_vector(const GradientTile& t, const Query& q, VF power, int64_t c) {
  T *p = static_cast<T*>(t.p) + c, *ds = static_cast<T*>(t.ds) + c;
  const int64_t step = t.out_pitch;
  uint32_t* pairs = sizeof(T) == 2 ? t.pairs + c : nullptr;
  int64_t r = 0;
  for (; r + 2 <= t.keys; r += 2, p += 2 * step, ds += 2 * step) {
    const Gradient a = gradient_of<kMasked>(t, q, power, r, c, p);
    const Gradient b = gradient_of<kMasked>(t, q, power, r + 1, c, p);
    store_rows(a.p, b.p, p, step, nullptr);
    store_rows(a.ds, b.ds, ds, step, pairs);
    if (sizeof(T) == 2) pairs += t.pairs_pitch;
  }
  if (r < t.keys) {
    const Gradient a = gradient_of<kMasked>(t, q, power, r, c, p);
    store(a.p, p), store(a.ds, ds);
    if (sizeof(T) == 2) store_two(Two{a.ds, set1(0.0f)}, reinterpret_cast<uint16_t*>(pairs));
  }
}

template <class T>
HWY_INLINE void gradient_loop(const GradientTile& t) {
  const VF power = set1(t.scale * kLog2E), minus_log2e = set1(-kLog2E);
  const hn::RebindToSigned<DF> d32;
  for (int64_t v = 0, c = 0; v < t.vectors; ++v, c += lanes()) {
    const LaneRange& r = t.view.lanes[v];
    const auto width = hn::Sub(hn::LoadU(d32, t.view.end + c), hn::LoadU(d32, t.view.begin + c));
    const Query q{hn::Mul(minus_log2e, load(t.lse + c)), load(t.delta + c),
                  hn::RebindMask(DF(), hn::Gt(width, hn::Set(d32, 1)))};
    if (r.common_begin <= t.first_key && t.first_key + t.keys <= r.common_end)
      gradient_vector<false, T>(t, q, power, c);
    else
      gradient_vector<true, T>(t, q, power, c);
  }
}

void gradient_tile(const GradientTile& t) {
  if (t.pairs)
    gradient_loop<uint16_t>(t);
  else
    gradient_loop<float>(t);
}

void scale_row(float* y, int64_t n, float factor) {
  const VF f = set1(factor);
  for (int64_t i = 0; i < n; i += lanes()) store(hn::Mul(f, load(y + i, n - i)), y + i, n - i);
}

template <class T>
void finish_loop(const float* x, int64_t n, float factor, T* out) {
  const VF f = set1(factor);
  for (int64_t i = 0; i < n; i += lanes()) store(hn::Mul(f, load(x + i, n - i)), out + i, n - i);
}

void finish_row(const float* x, int64_t n, float factor, void* out, DType dtype) {
  if (dtype == DType::kF32)
    finish_loop(x, n, factor, static_cast<float*>(out));
  else
    finish_loop(x, n, factor, static_cast<uint16_t*>(out));
}

void finish_rows(const float* x, int64_t ld, int64_t rows, int64_t n, float factor, void* out,
                 int64_t ldo, DType dtype) {
  const int64_t bytes = ldo * static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < rows; ++i)
    finish_row(x + i * ld, n, factor, static_cast<std::byte*>(out) + i * bytes, dtype);
}

template <class T>
void dots_loop(const T* a, const T* b, int64_t ld, int64_t rows, int64_t n, float* out) {
  for (; rows > 0; --rows, a += ld, b += ld) {
    VF sum = set1(0.0f);
    for (int64_t i = 0; i < n; i += lanes())
      sum = hn::MulAdd(load(a + i, n - i), load(b + i, n - i), sum);
    *out++ = sum_lanes(sum);
  }
}

void dot_rows(const void* a, const void* b, int64_t ld, int64_t rows, int64_t n, DType dtype,
              float* out) {
  if (dtype == DType::kF32) {
    dots_loop(static_cast<const float*>(a), static_cast<const float*>(b), ld, rows, n, out);
  } else {
    dots_loop(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), ld, rows, n, out);
  }
}

void add_row(float* acc, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes()) {
    store(hn::Add(load(acc + i, n - i), load(x + i, n - i)), acc + i, n - i);
  }
}

void copy_rows(const void* from, int64_t bytes, int64_t rows, int64_t words, float* to,
               int64_t pitch) {
  const std::byte* row = static_cast<const std::byte*>(from);
  for (int64_t i = 0; i < rows; ++i, row += bytes, to += pitch)
    copy_row(reinterpret_cast<const uint16_t*>(row), reinterpret_cast<uint16_t*>(to), words * 2);
}

const AttentionRows& rows_here() {
  static constexpr AttentionRows kRows{&softmax_run, &gradient_tile, &scale_row, &finish_row,
                                       &finish_rows, &dot_rows,      &add_row,   &copy_rows};
  return kRows;
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(rows_here);

const AttentionRows& attention_rows() { return HWY_DYNAMIC_DISPATCH(rows_here)(); }

}  // namespace moetrain::cpu
#endif
