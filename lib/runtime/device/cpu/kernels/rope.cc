// Rotary embedding: the angles of a token once, then all its heads.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/rope.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/rope-inl.h"
// clang-format on

#ifndef MOETRAIN_ROPE_ARGS
#define MOETRAIN_ROPE_ARGS
namespace moetrain::cpu {
/// One launch of rope over rows of tokens; y may be x.
struct RopeArgs {
  const void* x;
  void* y;
  DType dtype;
  const int32_t* pos;
  int64_t heads, width;
  RopeTurns turns;
};
}  // namespace moetrain::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

template <class T>
void rope_loop(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t plain = args.width - 2 * args.turns.half;
  for (int64_t token = begin; token < end; ++token) {
    const T* x = static_cast<const T*>(args.x) + token * args.heads * args.width;
    T* y = static_cast<T*>(args.y) + token * args.heads * args.width;
    for (int64_t h = 0; plain > 0 && x != y && h < args.heads; ++h)
      copy_row(x + h * args.width, y + h * args.width, plain);
    turn_heads(args.turns, args.pos[token], x + plain, args.width, y + plain, args.width,
               args.heads);
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
  const RopeArgs rope{x.data,
                      args.out[0].data,
                      x.dtype,
                      args.in[1].as<const int32_t>(),
                      x.rows() / tokens,
                      x.cols(),
                      rope_turns(args.attrs)};
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
