// Rows of norms and of their gradients, compiled once per instruction set; alone or with what fusion
// adds, the same bits. NOLINT: included again for every target, so it toggles instead of guarding.
#if defined(MOETRAIN_NORM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_NORM_INL_H
#undef MOETRAIN_NORM_INL_H
#else
#define MOETRAIN_NORM_INL_H
#endif

#include <cmath>

#include "runtime/device/cpu/kernels/two-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// Sum of squares of value(i, n) for the vectors i of d elements, in four chains: two would wait for
/// one another longer than for the loads. Elements a tail does not have must be zero.
template <class Value>
HWY_INLINE float sum_of_squares(int64_t d, const Value& value) {
  VF s0 = set1(0.0f), s1 = s0, s2 = s0, s3 = s0;
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + 4 * step <= d; i += 4 * step) {
    const VF a = value(i, Whole()), b = value(i + step, Whole());
    const VF c = value(i + 2 * step, Whole()), e = value(i + 3 * step, Whole());
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  for (; i < d; i += step) {
    const VF a = value(i, d - i);
    s0 = hn::MulAdd(a, a, s0);
  }
  return sum_lanes(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

HWY_INLINE float rstd_of(float squares, int64_t d, double eps) {
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + eps));
}

/// y = x rstd gain of one row, and the same once more into `copy` unless that is null.
template <class X, class Y>
HWY_INLINE void scale_row(const X* x, const float* gain, float rstd, Y* y, uint16_t* copy, int64_t d) {
  const VF r = set1(rstd);
  by_one(0, d, [=](int64_t i, auto n) HWY_ATTR {
    const VF v = hn::Mul(hn::Mul(load(x + i, n), r), load(gain + i, n));
    store(v, y + i, n);
    if (copy != nullptr) store(v, copy + i, n);
  });
}

/// From bf16 to bf16 without parting neighbours.
HWY_INLINE void scale_row(const uint16_t* x, const float* gain, float rstd, uint16_t* y,
                          uint16_t* copy, int64_t d) {
  const VF r = set1(rstd);
  by_two(0, d, [=](int64_t i, auto n) HWY_ATTR {
    const Two v = load_two(x + i, n), g = load_pairs(gain + i, n);
    const Two scaled{hn::Mul(hn::Mul(v.a, r), g.a), hn::Mul(hn::Mul(v.b, r), g.b)};
    store_two(scaled, y + i, n);
    if (copy != nullptr) store_two(scaled, copy + i, n);
  });
}

/// dx = rstd (g dy - xhat mean(g dy xhat)) with xhat = x rstd and dy(at, n) the vector at element `at`,
/// handed to emit(row, i, n, dx) vector by vector; dgain = sum of dy xhat over the rows. Rows of x are
/// `pitch` apart.
template <class Dy, class X, class Emit>
HWY_INLINE void norm_grad_loop(const Dy& dy, const X* x, int64_t pitch, const float* gain,
                               const float* rstd, float* dgain, int64_t d, int64_t begin,
                               int64_t end, const Emit& emit) {
  std::memset(dgain, 0, d * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const X* x_row = x + row * pitch;
    const VF r = set1(rstd[row]);
    VF even = set1(0.0f), odd = set1(0.0f);
    const auto gain_part = [&](int64_t i, auto n, VF dot) HWY_ATTR {
      const VF product = hn::Mul(dy(row * d + i, n), hn::Mul(load(x_row + i, n), r));
      store(hn::Add(load(dgain + i, n), product), dgain + i, n);
      return hn::MulAdd(product, load(gain + i, n), dot);
    };
    int64_t i = 0;
    for (; i + 2 * lanes() <= d; i += 2 * lanes()) {
      even = gain_part(i, Whole(), even);
      odd = gain_part(i + lanes(), Whole(), odd);
    }
    for (; i < d; i += lanes()) even = gain_part(i, d - i, even);
    const VF mean = set1(sum_lanes(hn::Add(even, odd)) / static_cast<float>(d));
    by_one(0, d, [&](int64_t i, auto n) HWY_ATTR {
      const VF gdy = hn::Mul(dy(row * d + i, n), load(gain + i, n));
      const VF xhat = hn::Mul(load(x_row + i, n), r);
      emit(row, i, n, hn::Mul(r, hn::NegMulAdd(xhat, mean, gdy)));
    });
  }
}

/// The same with dy in one tensor.
template <class D, class X, class Emit>
HWY_INLINE void norm_grad_loop(const D* dy, const X* x, int64_t pitch, const float* gain,
                               const float* rstd, float* dgain, int64_t d, int64_t begin,
                               int64_t end, const Emit& emit) {
  norm_grad_loop([dy](int64_t at, auto n) HWY_ATTR { return load(dy + at, n); }, x, pitch, gain,
                 rstd, dgain, d, begin, end, emit);
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
