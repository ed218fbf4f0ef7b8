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

/// amplitude * cos and sin of position * frequency: reduced in double, then polynomials on
/// [-pi/4, pi/4]. Plain loops without branches, which the compiler turns into vectors.
void sines(const double* frequencies, double position, float amplitude, int64_t n,
           float* HWY_RESTRICT cosine, float* HWY_RESTRICT sine) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  for (int64_t m = 0; m < n; ++m) {
    const double angle = position * frequencies[m];
    const double shifted = angle * 0.63661977236758134308 + kMagic;
    const double turns = shifted - kMagic;
    const double r = (angle - turns * 1.57079632679489655800) - turns * 6.12323399573676603587e-17;
    const double z = r * r;
    const double s =
        r +
        r * z *
            (-1.6666666666666666e-1 +
             z * (8.3333333333309497e-3 + z * (-1.9841269829589539e-4 +
                                               z * (2.7557313621385722e-6 - z * 2.5050747762e-8))));
    const double c =
        1 - 0.5 * z +
        z * z *
            (4.1666666666665930e-2 +
             z * (-1.3888888888730564e-3 + z * (2.4801587283886830e-5 - z * 2.7557313621e-7)));
    const int64_t quadrant = std::bit_cast<int64_t>(shifted);
    const double a = quadrant & 1 ? s : c, b = quadrant & 1 ? c : s;
    cosine[m] = amplitude * static_cast<float>((quadrant + 1) & 2 ? -a : a);
    sine[m] = amplitude * static_cast<float>(quadrant & 2 ? -b : b);
  }
}

HWY_INLINE float to_float(float x) { return x; }
HWY_INLINE float to_float(uint16_t x) { return bf16_to_float(x); }
HWY_INLINE void put(float v, float* p) { *p = v; }
HWY_INLINE void put(float v, uint16_t* p) { *p = float_to_bf16(v); }

template <class T>
void rotate(const T* x, T* y, int64_t step, int64_t gap, int64_t n, const float* cosine,
            const float* sine) {
  for (int64_t m = 0; m < n; ++m) {
    const float a = to_float(x[m * step]), b = to_float(x[m * step + gap]);
    put(a * cosine[m] - b * sine[m], y + m * step);
    put(a * sine[m] + b * cosine[m], y + m * step + gap);
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
        if (m0 == 0 && plain > 0) std::memcpy(y + at, x + at, plain * sizeof(T));
        if (args.interleave) {
          rotate(x + at + plain + 2 * m0, y + at + plain + 2 * m0, 2, 1, n, cosine, sine);
        } else {
          rotate(x + at + plain + m0, y + at + plain + m0, 1, args.half, n, cosine, sine);
        }
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
