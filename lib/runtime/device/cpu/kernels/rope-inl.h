// Angles and rotations of pairs, compiled once per instruction set. NOLINT: included again for every
// target, so it toggles instead of guarding.
#if defined(MOETRAIN_ROPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOETRAIN_ROPE_INL_H
#undef MOETRAIN_ROPE_INL_H
#else
#define MOETRAIN_ROPE_INL_H
#endif

#include <algorithm>
#include <bit>

#include "runtime/device/cpu/kernels/rope.h"
#include "runtime/device/cpu/kernels/two-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// amplitude * cos and sin of position * frequency: quarter turns counted in double, what is left
/// of one by polynomials in float. Plain loops without branches, which the compiler turns into
/// vectors.
HWY_INLINE void sines(const double* HWY_RESTRICT frequencies, double position, float amplitude,
                      int64_t n, float* HWY_RESTRICT cosine, float* HWY_RESTRICT sine) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  float part[kMaxHalf];
  int32_t quarter[kMaxHalf];
  for (int64_t m = 0; m < n; ++m) {
    const double turns = position * frequencies[m] * 0.63661977236758134308;
    const double shifted = turns + kMagic;
    part[m] = static_cast<float>(turns - (shifted - kMagic));
    quarter[m] = static_cast<int32_t>(std::bit_cast<int64_t>(shifted));
  }
  for (int64_t m = 0; m < n; ++m) {
    // sin and cos of f quarter turns, |f| <= 1/2.
    const float f = part[m], z = f * f;
    const float s =
        f * (1.5707963217f + z * (-6.4596346e-1f + z * (7.9680033e-2f - z * 4.6016579e-3f)));
    const float c = 1.0f + z * (-1.2337005426f +
                                z * (2.5366923e-1f + z * (-2.0860165e-2f + z * 9.0376643e-4f)));
    const int32_t q = quarter[m];
    const float a = q & 1 ? s : c, b = q & 1 ? c : s;
    cosine[m] = amplitude * ((q + 1) & 2 ? -a : a);
    sine[m] = amplitude * (q & 2 ? -b : b);
  }
}

/// Turns pairs by their angles: (a, b) to (a cos - b sin, a sin + b cos).
HWY_INLINE Two turn(Two x, VF cosine, VF sine) {
  return {hn::NegMulAdd(x.b, sine, hn::Mul(x.a, cosine)),
          hn::MulAdd(x.a, sine, hn::Mul(x.b, cosine))};
}

/// n pairs of neighbours; y may be x.
template <class X, class Y>
HWY_INLINE void turn_neighbours(const X* x, Y* y, int64_t n, const float* cosine,
                                const float* sine) {
  int64_t m = 0;
  for (; m + lanes() <= n; m += lanes()) {
    const Two pairs = load_pairs(x + 2 * m, Whole());
    store_pairs(turn(pairs, load(cosine + m), load(sine + m)), y + 2 * m, Whole());
  }
  if (m < n) {
    const Two pairs = load_pairs(x + 2 * m, 2 * (n - m));
    store_pairs(turn(pairs, load(cosine + m, n - m), load(sine + m, n - m)), y + 2 * m,
                2 * (n - m));
  }
}

/// n pairs whose second elements stand `gap` behind the first; y may be x.
template <class X, class Y>
HWY_INLINE void turn_halves(const X* x, Y* y, int64_t gap, int64_t n, const float* cosine,
                            const float* sine) {
  for (int64_t m = 0; m < n; m += lanes()) {
    const Two pairs{load(x + m, n - m), load(x + m + gap, n - m)};
    const Two turned = turn(pairs, load(cosine + m, n - m), load(sine + m, n - m));
    store(turned.a, y + m, n - m);
    store(turned.b, y + m + gap, n - m);
  }
}

/// The rotary part of `heads` rows of x (each x_pitch behind the one before) into rows of y; y may be x.
template <class X, class Y>
HWY_INLINE void turn_heads(const RopeTurns& turns, double position, const X* x, int64_t x_pitch,
                           Y* y, int64_t y_pitch, int64_t heads) {
  float cosine[kMaxHalf], sine[kMaxHalf];
  for (int64_t m0 = 0; m0 < turns.half; m0 += kMaxHalf) {
    const int64_t n = std::min(kMaxHalf, turns.half - m0);
    sines(turns.frequencies + m0, turns.direction * position, turns.amplitude, n, cosine, sine);
    const int64_t first = turns.interleave ? 2 * m0 : m0;
    for (int64_t h = 0; h < heads; ++h) {
      const X* from = x + h * x_pitch + first;
      Y* to = y + h * y_pitch + first;
      if (turns.interleave)
        turn_neighbours(from, to, n, cosine, sine);
      else
        turn_halves(from, to, turns.half, n, cosine, sine);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#endif
