// Mixing several datasets: which one gives sample i, and which of its samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moetrain {

/// The greedy blend of the field: sample i goes to the set with the largest w[d]*max(i,1) -
/// taken[d], the lowest number on ties, and is that set's next one. Only the counts at every
/// kStride-th sample are kept; the steps after one are repeated when asked for (some microseconds),
/// so a run of billions of samples needs megabytes. Const and thread-safe. Example: .5 .25 .25
/// gives (0,0)(1,0)(2,0)(0,1)(0,2)(1,1)(2,1)(0,3).
class Blend {
 public:
  struct Place {
    int64_t set = 0, sample = 0;
  };

  Blend() = default;
  /// `weights` are used as given (normalise twice before, as the field does).
  static Blend greedy(std::vector<double> weights, int64_t samples);
  /// Draws every set exactly `sizes[d]` times in proportion to the sizes; an exhausted set leaves.
  static Blend exhaustive(std::vector<int64_t> sizes);

  int64_t samples() const { return samples_; }
  Place at(int64_t i) const;
  /// Samples of every set among the first `i`.
  std::vector<int64_t> taken(int64_t i) const;

 private:
  static constexpr int64_t kStride = 1024;
  void build();
  Place step(int64_t i, std::span<int64_t> taken) const;
  std::span<const int64_t> counts_at(int64_t block) const;

  std::vector<double> weights_;
  std::vector<int64_t> sizes_;  // empty: no set ever leaves
  int64_t samples_ = 0;
  std::vector<int64_t> counts_;  // [block, set]
};

/// Samples a set must be able to give: ceil(ceil(N * w) * 1.005).
int64_t blend_request(int64_t samples, double weight);

}  // namespace moetrain
