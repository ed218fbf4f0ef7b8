// Vector loops over single rows of scores, on every instruction set.
#include "runtime/device/cpu/kernels/hwy_targets.h"
#include "runtime/device/cpu/kernels/attention_rows.h"

#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/attention_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void zero(float* p, int64_t begin, int64_t end) {
  if (begin < end) std::memset(p + begin, 0, (end - begin) * sizeof(float));
}

/// `v` in the first n lanes, `other` behind.
HWY_INLINE VF keep_first(VF v, int64_t n, VF other) {
  if (HWY_LIKELY(n >= lanes())) return v;
  return hn::IfThenElse(hn::FirstN(DF(), static_cast<size_t>(n)), v, other);
}

float softmax_row(float* s, int64_t begin, int64_t end, int64_t total, float scale, float* maximum,
                  float* sum) {
  zero(s, 0, begin < total ? begin : total);
  if (begin >= end) {
    zero(s, begin, total);
    return 1.0f;
  }
  zero(s, end, total);
  const VF lowest = set1(-std::numeric_limits<float>::infinity());
  VF top = lowest;
  for (int64_t i = begin; i < end; i += lanes()) {
    top = hn::Max(top, keep_first(load(s + i, end - i), end - i, lowest));
  }
  const float old = *maximum;
  float now = hn::GetLane(hn::MaxOfLanes(DF(), top));
  if (old > now) now = old;
  const VF factor = set1(scale), shift = set1(-scale * now), nothing = set1(0.0f);
  VF added = nothing;
  for (int64_t i = begin; i < end; i += lanes()) {
    const VF p = keep_first(exp(hn::MulAdd(factor, load(s + i, end - i), shift)), end - i, nothing);
    added = hn::Add(added, p);
    store(p, s + i, end - i);
  }
  const float shrink = old == now ? 1.0f : hn::GetLane(exp(set1(scale * (old - now))));
  *maximum = now;
  *sum = *sum * shrink + sum_lanes(added);
  return shrink;
}

void gradient_row(float* s, float* dp, int64_t begin, int64_t end, int64_t total, float scale,
                  float lse, float delta) {
  if (begin > total) begin = total;
  if (end < begin) end = begin;
  zero(s, 0, begin), zero(dp, 0, begin);
  zero(s, end, total), zero(dp, end, total);
  const VF factor = set1(scale), shift = set1(-lse), d = set1(delta);
  for (int64_t i = begin; i < end; i += lanes()) {
    const VF p = exp(hn::MulAdd(factor, load(s + i, end - i), shift));
    const VF ds = hn::Mul(hn::Mul(factor, p), hn::Sub(load(dp + i, end - i), d));
    store(p, s + i, end - i);
    store(ds, dp + i, end - i);
  }
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
  if (dtype == DType::kF32) finish_loop(x, n, factor, static_cast<float*>(out));
  else finish_loop(x, n, factor, static_cast<uint16_t*>(out));
}

template <class T>
float dot_loop(const T* a, const T* b, int64_t n) {
  VF sum = set1(0.0f);
  for (int64_t i = 0; i < n; i += lanes()) sum = hn::MulAdd(load(a + i, n - i), load(b + i, n - i), sum);
  return sum_lanes(sum);
}

float dot_row(const void* a, const void* b, int64_t n, DType dtype) {
  if (dtype == DType::kF32) return dot_loop(static_cast<const float*>(a), static_cast<const float*>(b), n);
  return dot_loop(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), n);
}

void add_row(float* acc, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes()) {
    store(hn::Add(load(acc + i, n - i), load(x + i, n - i)), acc + i, n - i);
  }
}

const AttentionRows& rows_here() {
  static constexpr AttentionRows kRows{&softmax_row, &gradient_row, &scale_row,
                                       &finish_row,  &dot_row,      &add_row};
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
