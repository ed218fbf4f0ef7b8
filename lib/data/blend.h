// Mixing several datasets: which one gives sample i, and which of its samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moetrain {

/// Sample i of the blend is sample `sample[i]` of set `set[i]`.
struct BlendIndex {
  std::vector<int16_t> set;
  std::vector<int64_t> sample;
  std::vector<int64_t> taken;  ///< per set
};

/// Greedy blend of the field: sample i goes to the set with the largest w[d]*max(i,1) - taken[d],
/// the lowest number on ties. `weights` are used as given (normalise twice before, as the field
/// does). Example: .5 .25 .25 gives (0,0)(1,0)(2,0)(0,1)(0,2)(1,1)(2,1)(0,3).
BlendIndex blend(std::span<const double> weights, int64_t samples);

/// Draws every set exactly `sizes[d]` times in proportion to the sizes; an exhausted set leaves.
BlendIndex blend_exhaustive(std::span<const int64_t> sizes);

/// Samples a set must be able to give: ceil(ceil(N * w) * 1.005).
int64_t blend_request(int64_t samples, double weight);

}  // namespace moetrain
