// How a rotary embedding turns, as its kernels want it.
#pragma once

#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

/// The attributes of rope.
struct RopeTurns {
  const double* frequencies;
  int64_t half;      ///< pairs
  double direction;  ///< -1: the inverse
  float amplitude;
  bool interleave;
};

inline RopeTurns rope_turns(const Attrs& attrs) {
  return {attrs.reals("frequencies").data(), attrs.integer("rope_dim") / 2,
          attrs.integer_or("inverse", 0) ? -1.0 : 1.0, static_cast<float>(attrs.real("amplitude")),
          attrs.integer("interleave") != 0};
}

/// Pairs whose sines fit the stack; longer rotary parts go through in pieces.
constexpr int64_t kMaxHalf = 256;

}  // namespace moetrain::cpu
