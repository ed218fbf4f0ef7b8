// Rotary embedding: the angles of a token once, then all its heads.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

#ifndef MOETRAIN_ROPE_ARGS
#define MOETRAIN_ROPE_ARGS
namespace moetrain::cpu {
/// One launch of rope over rows of tokens.
struct RopeArgs {
  const void* x;
  void* y;
  DType dtype;
  const int32_t* pos;
  const double* frequencies;
  int64_t heads, width, half;
  double direction;
  float amplitude;
  bool interleave;
};
/// Pairs whose sines fit the stack; longer rotary parts go through in pieces.
constexpr int64_t kMaxHalf = 256;
}  // namespace moetrain::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// amplitude * cos and sin of position * frequency: quarter turns counted in double, what is left
/// of one by polynomials in float. Plain loops without branches, which the compiler turns into
/// vectors.
void sines(const double* HWY_RESTRICT frequencies, double position, float amplitude, int64_t n,
           float* HWY_RESTRICT cosine, float* HWY_RESTRICT sine) {
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

HWY_INLINE Two load_pairs(const float* x, Whole) {
  Two pairs;
  hn::LoadInterleaved2(DF(), x, pairs.a, pairs.b);
  return pairs;
}
HWY_INLINE void store_pairs(Two pairs, float* y, Whole) {
  hn::StoreInterleaved2(pairs.a, pairs.b, DF(), y);
}
// The even and odd elements of bf16 are what load_two gives anyway.
template <class N>
HWY_INLINE Two load_pairs(const uint16_t* x, N n) {
  return load_two(x, n);
}
template <class N>
HWY_INLINE void store_pairs(Two pairs, uint16_t* y, N n) {
  store_two(pairs, y, n);
}
HWY_INLINE Two load_pairs(const float* x, int64_t n) {
  HWY_ALIGN float buffer[2 * kMaxLanes] = {};
  std::memcpy(buffer, x, static_cast<size_t>(n) * sizeof(float));
  return load_pairs(buffer, Whole());
}
HWY_INLINE void store_pairs(Two pairs, float* y, int64_t n) {
  HWY_ALIGN float buffer[2 * kMaxLanes];
  store_pairs(pairs, buffer, Whole());
  std::memcpy(y, buffer, static_cast<size_t>(n) * sizeof(float));
}

/// Turns pairs by their angles: (a, b) to (a cos - b sin, a sin + b cos).
HWY_INLINE Two turn(Two x, VF cosine, VF sine) {
  return {hn::NegMulAdd(x.b, sine, hn::Mul(x.a, cosine)),
          hn::MulAdd(x.a, sine, hn::Mul(x.b, cosine))};
}

/// n pairs of neighbours.
template <class T>
HWY_INLINE void turn_neighbours(const T* x, T* y, int64_t n, const float* cosine,
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

/// n pairs whose second elements stand `gap` behind the first.
template <class T>
HWY_INLINE void turn_halves(const T* x, T* y, int64_t gap, int64_t n, const float* cosine,
                            const float* sine) {
  for (int64_t m = 0; m < n; m += lanes()) {
    const Two pairs{load(x + m, n - m), load(x + m + gap, n - m)};
    const Two turned = turn(pairs, load(cosine + m, n - m), load(sine + m, n - m));
    store(turned.a, y + m, n - m);
    store(turned.b, y + m + gap, n - m);
  }
}

template <class T>
void rope_loop(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t plain = args.width - 2 * args.half;
  float cosine[kMaxHalf], sine[kMaxHalf];
  for (int64_t token = begin; token < end; ++token) {
    const T* x = static_cast<const T*>(args.x) + token * args.heads * args.width;
    T* y = static_cast<T*>(args.y) + token * args.heads * args.width;
    for (int64_t m0 = 0; m0 < args.half; m0 += kMaxHalf) {
      const int64_t n = std::min(kMaxHalf, args.half - m0);
      sines(args.frequencies + m0, args.direction * args.pos[token], args.amplitude, n, cosine,
            sine);
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t at = h * args.width;
        if (m0 == 0 && plain > 0) copy_row(x + at, y + at, plain);
        const int64_t first = at + plain + (args.interleave ? 2 * m0 : m0);
        if (args.interleave)
          turn_neighbours(x + first, y + first, n, cosine, sine);
        else
          turn_halves(x + first, y + first, args.half, n, cosine, sine);
      }
    }
  }
}

void rope_tokens(const RopeArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::kF32)
    rope_loop<float>(args, begin, end);
  else
    rope_loop<uint16_t>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(rope_tokens);

namespace {

bool accepts_rope(const Attrs&, std::span<const Type> in, std::span<const Type> out) {
  return is_f32_or_bf16(in[0]) && in[0].dtype == out[0].dtype;
}

void run_rope(const LaunchArgs& args) {
  const Tensor& x = args.in[0];
  const int64_t tokens = args.in[1].numel();
  if (tokens == 0) return;
  const Attrs& attrs = args.attrs;
  const RopeArgs rope{x.data,
                      args.out[0].data,
                      x.dtype,
                      args.in[1].as<const int32_t>(),
                      attrs.reals("frequencies").data(),
                      x.rows() / tokens,
                      x.cols(),
                      attrs.integer("rope_dim") / 2,
                      attrs.integer_or("inverse", 0) ? -1.0 : 1.0,
                      static_cast<float>(attrs.real("amplitude")),
                      attrs.integer("interleave") != 0};
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, rope.heads * rope.width));
  args.pool.run_ranges(tokens, grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rope_tokens)(rope, begin, end);
  });
}

constexpr Kernel kRows[] = {{"rope", "rope.vector", &accepts_rope, nullptr, &run_rope}};

}  // namespace

std::span<const Kernel> rope_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
