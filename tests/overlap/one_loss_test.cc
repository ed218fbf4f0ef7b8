// Overlap changes when work runs, never what it computes: bit for bit the same training with and without it.
#include <gtest/gtest.h>

#include "train/layout_run.h"

namespace moetrain {
namespace {

struct Mix {
  const char* name;
  int ranks;
  std::vector<std::string> settings;  // of section parallel
};

std::vector<std::string> sets_of(const Mix& mix, const char* overlap) {
  std::vector<std::string> sets{"model.num_hidden_layers=4", "train.global_batch_size=16"};
  for (const std::string& item : mix.settings) sets.push_back("parallel." + item);
  sets.push_back(std::string("parallel.overlap=") + overlap);
  return sets;
}

void expect_same_bits(const LayoutRun& a, const LayoutRun& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss);
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm);
    EXPECT_EQ(a.steps[i].loads, b.steps[i].loads);
  }
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, values] : a.weights) EXPECT_EQ(values, b.weights.at(name)) << name;
}

class Overlap : public testing::TestWithParam<Mix> {};

TEST_P(Overlap, GivesTheSameBits) {
  const Mix& mix = GetParam();
  const LayoutRun off = run_layout(mix.ranks, 3, sets_of(mix, "false"));
  expect_same_bits(run_layout(mix.ranks, 3, sets_of(mix, "true")), off);
  // A store of no bytes runs every weight gradient at once; the sums must not care.
  std::vector<std::string> tight = sets_of(mix, "true");
  tight.push_back("parallel.weight_gradient_store=0");
  expect_same_bits(run_layout(mix.ranks, 3, tight), off);
}

const Mix kMixes[] = {
    {"dp2", 2, {"data=2"}},
    {"dp2_zero3", 2, {"data=2", "zero=3"}},
    {"ep2", 2, {"expert=2"}},
    {"ep2_pairs", 2, {"expert=2", "schedule=fused_1f1b"}},
    {"ep4_pairs_nodes", 4, {"expert=4", "schedule=fused_1f1b", "ranks_per_node=2", "dispatch=dedup"}},
    {"ep4_allgather_nodes", 4, {"expert=4", "schedule=fused_1f1b", "ranks_per_node=2", "dispatch=allgather"}},
    {"tp2_ep2_pairs", 4, {"tensor=2", "expert=2", "schedule=fused_1f1b"}},
    {"cp2_ep2_pairs", 2, {"context=2", "expert=2", "schedule=fused_1f1b"}},
    {"pp2_ep2_fused", 4, {"pipeline=2", "expert=2", "schedule=fused_1f1b"}},
    {"pp2_ep2_interleaved", 4, {"pipeline=2", "expert=2", "virtual_stages=2", "schedule=fused_1f1b"}},
    {"pp2_ep2_dualpipev", 4, {"pipeline=2", "expert=2", "schedule=dualpipev"}},
    {"pp2_tp2_zero3", 8, {"pipeline=2", "tensor=2", "zero=3"}},
};

INSTANTIATE_TEST_SUITE_P(Mixes, Overlap, testing::ValuesIn(kMixes),
                         [](const auto& info) { return std::string(info.param.name); });

// A pair keeps what each micro-batch leaves apart: the whole batch still trains like one rank.
TEST(Pairs, TrainTheSameModelAsOneRank) {
  const Mix one{"", 1, {}}, pairs{"", 2, {"expert=2", "schedule=fused_1f1b"}};
  const LayoutRun expected = run_layout(1, 4, sets_of(one, "true"));
  const LayoutRun actual = run_layout(2, 4, sets_of(pairs, "true"));
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, 1e-5 * expected.steps[i].loss);
    EXPECT_NEAR(actual.steps[i].grad_norm, expected.steps[i].grad_norm,
                2e-5 * expected.steps[i].grad_norm);
    EXPECT_EQ(actual.steps[i].loads, expected.steps[i].loads);
  }
}

}  // namespace
}  // namespace moetrain
