// Vector loops over single rows of scores, on every instruction set.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/attention_rows.h"

#include <cstring>
#include <limits>

#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/attention_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void zero(T* p, int64_t begin, int64_t end) {
  if (begin < end) std::memset(p + begin, 0, (end - begin) * sizeof(T));
}

/// `v` in the first n lanes, `other` behind.
HWY_INLINE VF keep_first(VF v, int64_t n, VF other) {
  if (HWY_LIKELY(n >= lanes())) return v;
  return hn::IfThenElse(hn::FirstN(DF(), static_cast<size_t>(n)), v, other);
}

/// The sum of what is written to out[begin, end) = 2^(factor s + shift).
template <class T>
HWY_INLINE VF powers(const float* s, int64_t begin, int64_t end, VF factor, VF shift, T* out) {
  const VF nothing = set1(0.0f);
  VF added = nothing;
  for (int64_t i = begin; i < end; i += lanes()) {
    const VF t = hn::MulAdd(factor, load(s + i, end - i), shift);
    const VF p = keep_first(exp2_below(t), end - i, nothing);
    added = hn::Add(added, p);
    store(p, out + i, end - i);
  }
  return added;
}

float softmax_row(float* s, int64_t begin, int64_t end, int64_t total, float scale, float* maximum,
                  float* sum, uint16_t* rounded) {
  if (begin >= end) begin = end = total;
  if (rounded)
    zero(rounded, 0, begin), zero(rounded, end, total);
  else
    zero(s, 0, begin), zero(s, end, total);
  if (begin == end) return 1.0f;
  const VF lowest = set1(-std::numeric_limits<float>::infinity());
  VF top = lowest;
  for (int64_t i = begin; i < end; i += lanes()) {
    top = hn::Max(top, keep_first(load(s + i, end - i), end - i, lowest));
  }
  const float old = *maximum;
  float now = hn::GetLane(hn::MaxOfLanes(DF(), top));
  if (old > now) now = old;
  const VF factor = set1(scale * kLog2E), shift = set1(-scale * kLog2E * now);
  const VF added = rounded ? powers(s, begin, end, factor, shift, rounded)
                           : powers(s, begin, end, factor, shift, s);
  const float shrink = old == now ? 1.0f : hn::GetLane(exp(set1(scale * (old - now))));
  *maximum = now;
  *sum = *sum * shrink + sum_lanes(added);
  return shrink;
}

template <class T>
HWY_INLINE void gradients(const float* s, const float* dp, int64_t begin, int64_t end,
                          int64_t total, float scale, float lse, float delta, T* p_out, T* ds_out) {
  const VF power = set1(scale * kLog2E), shift = set1(-lse * kLog2E), d = set1(delta);
  const VF factor = set1(scale);
  for (int64_t i = begin; i < end; i += lanes()) {
    const VF p = exp2_below(hn::MulAdd(power, load(s + i, end - i), shift));
    const VF ds = hn::Mul(hn::Mul(factor, p), hn::Sub(load(dp + i, end - i), d));
    store(p, p_out + i, end - i);
    store(ds, ds_out + i, end - i);
  }
  zero(p_out, 0, begin), zero(ds_out, 0, begin);
  zero(p_out, end, total), zero(ds_out, end, total);
}

void gradient_row(float* s, float* dp, int64_t begin, int64_t end, int64_t total, float scale,
                  float lse, float delta, uint16_t* p16, uint16_t* ds16) {
  if (begin >= end) begin = end = total;
  if (p16)
    gradients(s, dp, begin, end, total, scale, lse, delta, p16, ds16);
  else
    gradients(s, dp, begin, end, total, scale, lse, delta, s, dp);
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

template <class T>
float dot_loop(const T* a, const T* b, int64_t n) {
  VF sum = set1(0.0f);
  for (int64_t i = 0; i < n; i += lanes())
    sum = hn::MulAdd(load(a + i, n - i), load(b + i, n - i), sum);
  return sum_lanes(sum);
}

float dot_row(const void* a, const void* b, int64_t n, DType dtype) {
  if (dtype == DType::kF32)
    return dot_loop(static_cast<const float*>(a), static_cast<const float*>(b), n);
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
