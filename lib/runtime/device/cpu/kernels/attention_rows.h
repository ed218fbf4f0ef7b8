// Row-wise vector pieces of attention: masked softmax, its gradient, and moving rows in and out.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace moetrain::cpu {

/// The pieces on one instruction set.
struct AttentionRows {
  /// One step of the online softmax over s[0, total), of which [begin, end) is visible and the rest
  /// becomes zero: s becomes exp(scale * (s - maximum)), *maximum and *sum are updated. With
  /// `rounded` the result goes there as bf16 instead. Returns the factor by which what was summed
  /// before has to shrink (1 if nothing changed).
  float (*softmax)(float* s, int64_t begin, int64_t end, int64_t total, float scale, float* maximum,
                   float* sum, uint16_t* rounded);
  /// s becomes p = exp(scale * s - lse), dp becomes ds = scale * p * (dp - delta), both zero
  /// outside [begin, end). With `p16` and `ds16` the results go there as bf16 instead (which may
  /// overlap what was read already).
  void (*gradient)(float* s, float* dp, int64_t begin, int64_t end, int64_t total, float scale,
                   float lse, float delta, uint16_t* p16, uint16_t* ds16);
  /// y[0, n) *= factor.
  void (*scale)(float* y, int64_t n, float factor);
  /// out[0, n) = factor * x[0, n), rounded to `dtype`.
  void (*finish)(const float* x, int64_t n, float factor, void* out, DType dtype);
  /// Sum of a[i] * b[i], both of `dtype`.
  float (*dot)(const void* a, const void* b, int64_t n, DType dtype);
  /// acc[0, n) += x[0, n).
  void (*add)(float* acc, const float* x, int64_t n);
};

const AttentionRows& attention_rows();

}  // namespace moetrain::cpu
