// Layers over chunks: against every possible division, and the known cases.
#include "train/stage_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "config/load.h"
#include "model/flops.h"
#include "train/pipeline.h"

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
    const int fewest_last = tail > 0 && chunks > 1 ? 0 : 1;
    EXPECT_GE(*std::min_element(found.begin(), found.end() - 1 + (chunks == 1)), 1);
    EXPECT_GE(found.back(), fewest_last);
    const auto [most, squares] = quality(costs, lead, tail, found);
    Counts counts;
    const std::function<void(int)> divide = [&](int left) {
      if (static_cast<int>(counts.size()) + 1 == chunks) {
        if (left < fewest_last) return;
        counts.push_back(left);
        const auto other = quality(costs, lead, tail, counts);
        EXPECT_LE(most, other.first + 1e-9);
        if (other.first < most + 1e-9) {
          EXPECT_LE(squares, other.second + 1e-6);
        }
        counts.pop_back();
        return;
      }
      for (int n = 1; n <= left; ++n) {
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
  v3.front() = 5;
  v3.back() = 0;
  EXPECT_EQ(balanced_layers(std::vector<double>(61, 1), 0, 4.5, 16), v3);
}

/// FLOPs of every stage in shares of the most even division, as `settings` lay out nine equal layers.
std::vector<double> shares(const std::string& vocabulary, const std::string& schedule) {
  const char* text =
      "model: {hidden_size: 64, num_hidden_layers: 9, intermediate_size: 128, moe_intermediate_size: 32,"
      " num_attention_heads: 2, q_lora_rank: 32, kv_lora_rank: 16, qk_nope_head_dim: 16,"
      " qk_rope_head_dim: 8, v_head_dim: 16, n_routed_experts: 4, num_experts_per_tok: 2,"
      " first_k_dense_replace: 0, num_nextn_predict_layers: 0}\n"
      "data: {sequence_length: 32, train: [{prefix: none, weight: 1}]}\n"
      "train: {global_batch_size: 8, micro_batch_size: 1, steps: 1}\n";
  const Config config =
      parse_config(text, "nine.yaml", ".", {"model.vocab_size=" + vocabulary, "parallel.pipeline=2",
                                            "parallel.schedule=" + schedule});
  std::vector<double> flops = forward_flops_of_layers(config.model, config.data.sequence_length);
  const double total = std::accumulate(flops.begin(), flops.end(), 0.0);
  const std::vector<int> chunks = config_chunks(config);
  const Stages stages = config_stages(config);
  std::vector<double> sums(2, 0);
  for (size_t i = 0; i < chunks.size(); ++i) sums[stages.stage_of(chunks[i])] += flops[i];
  sums[stages.stage_of(stages.chunks() - 1)] += flops.back();
  for (double& s : sums) s *= 2 / total;
  return sums;
}

TEST(StageLayout, TheHeadCountsOnItsStage) {
  for (const char* vocabulary : {"64", "256", "1024", "4096"}) {
    for (const char* schedule : {"1f1b", "fused_1f1b", "dualpipev"}) {
      for (double share : shares(vocabulary, schedule)) {
        EXPECT_NEAR(share, 1, 0.2) << vocabulary << " words, " << schedule;
      }
    }
  }
}

}  // namespace
}  // namespace moetrain
