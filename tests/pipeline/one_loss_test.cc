// Pipeline stages train the same model as one rank: losses, norms, loads and weights over several steps.
#include <gtest/gtest.h>

#include <cmath>

#include "train/layout_run.h"

namespace moetrain {
namespace {

constexpr int kSteps = 4;
constexpr double kRate = 0.002;

struct Mix {
  const char* name;
  int ranks;
  std::vector<std::string> settings;  // of section parallel
};

std::vector<std::string> sets_of(const std::vector<std::string>& parallel) {
  std::vector<std::string> sets{"model.num_hidden_layers=4"};
  for (const std::string& item : parallel) sets.push_back("parallel." + item);
  return sets;
}

const LayoutRun& one_rank(bool mtp) {
  static const LayoutRun with = run_layout(1, kSteps, sets_of({}), true);
  static const LayoutRun without = run_layout(1, kSteps, sets_of({}), false);
  return mtp ? with : without;
}

void expect_same_training(const LayoutRun& a, const LayoutRun& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    SCOPED_TRACE(i + 1);
    EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, 1e-5 * b.steps[i].loss);
    EXPECT_NEAR(a.steps[i].mtp_loss, b.steps[i].mtp_loss, 1e-5 * b.steps[i].mtp_loss);
    EXPECT_NEAR(a.steps[i].balance_loss, b.steps[i].balance_loss, 1e-4 * b.steps[i].balance_loss);
    EXPECT_NEAR(a.steps[i].grad_norm, b.steps[i].grad_norm, 2e-5 * b.steps[i].grad_norm);
    EXPECT_EQ(a.steps[i].loads, b.steps[i].loads);
  }
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, expected] : b.weights) {
    if (name.starts_with("m:") || name.starts_with("v:")) continue;
    const std::vector<float>& actual = a.weights.at(name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 0.5 * kRate) << name << "[" << i << "]";
    }
  }
}

class Pipeline : public testing::TestWithParam<Mix> {};

TEST_P(Pipeline, TrainsTheSameModelAsOneRank) {
  const Mix& mix = GetParam();
  // With MTP the last stage reads the embedding, whose home is the first stage.
  for (const bool mtp : {false, true}) {
    SCOPED_TRACE(mtp ? "with MTP" : "without MTP");
    expect_same_training(run_layout(mix.ranks, kSteps, sets_of(mix.settings), mtp), one_rank(mtp));
  }
}

const Mix kMixes[] = {
    {"pp2", 2, {"pipeline=2"}},
    {"pp2_fused", 2, {"pipeline=2", "schedule=fused_1f1b"}},
    {"pp2_interleaved", 2, {"pipeline=2", "virtual_stages=2"}},
    {"pp2_interleaved_fused", 2, {"pipeline=2", "virtual_stages=2", "schedule=fused_1f1b"}},
    {"pp2_dualpipev", 2, {"pipeline=2", "schedule=dualpipev"}},
    {"pp2_uneven", 2, {"pipeline=2", "stage_layout=[1, 3]"}},
    {"pp2_head_alone", 2, {"pipeline=2", "stage_layout=[4, 0]"}},
    {"pp2_head_alone_dualpipev", 2, {"pipeline=2", "schedule=dualpipev", "stage_layout=[1, 2, 1, 0]"}},
    {"pp2_head_alone_interleaved", 2, {"pipeline=2", "virtual_stages=2", "schedule=fused_1f1b", "stage_layout=[1, 2, 1, 0]"}},
    {"pp4", 4, {"pipeline=4"}},
    {"pp2_dp2_zero3", 4, {"pipeline=2", "zero=3"}},
    {"pp2_tp2_dualpipev", 4, {"pipeline=2", "tensor=2", "schedule=dualpipev"}},
    {"pp2_ep2_tp2", 8, {"pipeline=2", "tensor=2", "expert=2"}},
    {"pp2_ep4", 8, {"pipeline=2", "expert=4", "schedule=fused_1f1b"}},
    {"pp4_fused", 4, {"pipeline=4", "schedule=fused_1f1b"}},
    {"pp2_cp2_fused", 4, {"pipeline=2", "context=2", "schedule=fused_1f1b"}},
    {"pp2_dp2_dualpipev", 4, {"pipeline=2", "schedule=dualpipev"}},
    {"pp2_tp2_interleaved_fused", 4, {"pipeline=2", "tensor=2", "virtual_stages=2", "schedule=fused_1f1b"}},
    {"pp2_ep4_dedup_nodes", 8, {"pipeline=2", "expert=4", "dispatch=dedup", "ranks_per_node=2"}},
    {"pp2_ep2_no_overlap", 4, {"pipeline=2", "expert=2", "overlap=false", "schedule=dualpipev"}},
};

INSTANTIATE_TEST_SUITE_P(Mixes, Pipeline, testing::ValuesIn(kMixes),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PipelineBits, TheOrderOfMicroBatchesChangesNothing) {
  const LayoutRun plain = run_layout(2, 3, sets_of({"pipeline=2"}));
  const LayoutRun fused = run_layout(2, 3, sets_of({"pipeline=2", "schedule=fused_1f1b"}));
  for (size_t i = 0; i < plain.steps.size(); ++i) {
    EXPECT_EQ(plain.steps[i].loss, fused.steps[i].loss);
    EXPECT_EQ(plain.steps[i].grad_norm, fused.steps[i].grad_norm);
  }
  for (const auto& [name, values] : plain.weights) EXPECT_EQ(values, fused.weights.at(name)) << name;
}

TEST(PipelineNonFinite, AStepWithoutANumberChangesNothingOnAnyStage) {
  const auto sets = sets_of({"pipeline=2"});
  const LayoutRun before = run_layout(2, 2, sets);
  const LayoutRun after = run_layout(2, 3, sets, true, {3});
  EXPECT_TRUE(after.steps[1].applied);
  EXPECT_FALSE(after.steps[2].applied);
  for (const auto& [name, values] : before.weights) EXPECT_EQ(values, after.weights.at(name)) << name;
}

}  // namespace
}  // namespace moetrain
