// Layers over chunks: against every possible division, and the known cases.
#include "train/stage_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace moetrain {
namespace {

using Counts = std::vector<int64_t>;

/// (largest sum, sum of squares) of one division.
std::pair<double, double> quality(const std::vector<double>& costs, double lead, double tail,
                                  const Counts& counts) {
  double most = 0, squares = 0;
  size_t at = 0;
  for (size_t c = 0; c < counts.size(); ++c) {
    double sum = (c == 0 ? lead : 0) + (c + 1 == counts.size() ? tail : 0);
    for (int64_t i = 0; i < counts[c]; ++i) sum += costs[at++];
    most = std::max(most, sum);
    squares += sum * sum;
  }
  return {most, squares};
}

TEST(StageLayout, NoDivisionIsBetter) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.2, 2), end(0, 5);
  for (int trial = 0; trial < 60; ++trial) {
    const int layers = 1 + trial % 9, chunks = 1 + trial % std::min(4, layers);
    std::vector<double> costs(layers);
    for (double& c : costs) c = cost(random);
    const double lead = trial % 3 ? 0 : end(random), tail = trial % 2 ? 0 : end(random);
    const Counts found = balanced_layers(costs, lead, tail, chunks);
    ASSERT_EQ(static_cast<int>(found.size()), chunks);
    EXPECT_GE(*std::min_element(found.begin(), found.end()), 1);
    const auto [most, squares] = quality(costs, lead, tail, found);
    Counts counts;
    const std::function<void(int)> divide = [&](int left) {
      if (static_cast<int>(counts.size()) + 1 == chunks) {
        counts.push_back(left);
        const auto other = quality(costs, lead, tail, counts);
        EXPECT_LE(most, other.first + 1e-9);
        if (other.first < most + 1e-9) {
          EXPECT_LE(squares, other.second + 1e-6);
        }
        counts.pop_back();
        return;
      }
      for (int n = 1; n <= left - (chunks - static_cast<int>(counts.size()) - 1); ++n) {
        counts.push_back(n);
        divide(left - n);
        counts.pop_back();
      }
    };
    divide(layers);
  }
}

TEST(StageLayout, KnownCases) {
  EXPECT_EQ(balanced_layers(std::vector<double>(7, 1), 0, 0, 4), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(balanced_layers(std::vector<double>(4, 1), 0, 0.3, 2), (Counts{2, 2}));
  EXPECT_EQ(balanced_layers(std::vector<double>(5, 1), 0, 0.3, 2), (Counts{3, 2}));
  // DeepSeek-V3 in 16 stages: an MTP layer and two output products weigh as much as 4.5 layers.
  Counts v3(16, 4);
  v3.back() = 1;
  EXPECT_EQ(balanced_layers(std::vector<double>(61, 1), 0, 4.5, 16), v3);
  // Folded over two stages, the first chunk lies on the stage of the heavy end.
  EXPECT_EQ(balanced_layers(std::vector<double>(9, 1), 3, 3, 4), (Counts{1, 4, 3, 1}));
}

}  // namespace
}  // namespace moetrain
