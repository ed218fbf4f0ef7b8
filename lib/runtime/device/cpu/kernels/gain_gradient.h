// The gradient of a norm's gain: rows in fixed blocks, then the blocks in order, so that threads
// change no bit.
#pragma once

#include <algorithm>

#include "runtime/device/cpu/kernels/families.h"

namespace moetrain::cpu {

/// Rows whose gain gradients are summed in one piece.
inline constexpr int64_t kGainRows = 64;

/// Workspace of run_gain_gradient for rows of dy like these.
inline size_t gain_workspace(const Shape& dy) {
  const int64_t d = dy.back(), rows = d == 0 ? 0 : numel(dy) / d;
  return kCarverSlack + round_up_64(ceil_div(rows, kGainRows) * d * sizeof(float));
}

/// Calls rows(dgain, begin, end) for blocks of the rows of operand 0; each call writes its gain
/// gradient (f32 [d]) to `dgain`. Output 1 becomes their sum, in block order.
template <class Rows>
void run_gain_gradient(const LaunchArgs& args, Rows rows) {
  const int64_t count = args.in[0].rows(), d = args.in[0].cols();
  const int64_t blocks = ceil_div(count, kGainRows);
  float* partial = Carver(args).take<float>(blocks * d);
  args.pool.run(blocks, [&](int64_t block, int) {
    rows(partial + block * d, block * kGainRows, std::min(count, (block + 1) * kGainRows));
  });
  float* gain = args.out[1].as<float>();
  args.pool.run_ranges(d, 256, [&](int64_t begin, int64_t end, int) {
    std::fill(gain + begin, gain + end, 0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t i = begin; i < end; ++i) gain[i] += partial[b * d + i];
    }
  });
}

}  // namespace moetrain::cpu
