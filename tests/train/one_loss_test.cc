// One loss: every layout trains the same model as one rank; the same layout gives the same bits.
#include <gtest/gtest.h>

#include <cmath>

#include "layout_run.h"

namespace moetrain {
namespace {

constexpr int kSteps = 5;
constexpr double kRate = 0.002;

struct Mix {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};

std::vector<std::string> parallel(std::initializer_list<const char*> items) {
  std::vector<std::string> sets;
  for (const char* item : items) sets.push_back(std::string("parallel.") + item);
  return sets;
}

const LayoutRun& one_rank() {
  static const LayoutRun run = run_layout(1, kSteps, {});
  return run;
}

void expect_same_training(const LayoutRun& a, const LayoutRun& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, 1e-5 * b.steps[i].loss) << "step " << i + 1;
    EXPECT_NEAR(a.steps[i].mtp_loss, b.steps[i].mtp_loss, 1e-5 * b.steps[i].mtp_loss);
    EXPECT_NEAR(a.steps[i].balance_loss, b.steps[i].balance_loss,
                1e-4 * b.steps[i].balance_loss);
    EXPECT_NEAR(a.steps[i].grad_norm, b.steps[i].grad_norm, 2e-5 * b.steps[i].grad_norm)
        << "step " << i + 1;
    EXPECT_EQ(a.steps[i].loads, b.steps[i].loads) << "step " << i + 1;
  }
  ASSERT_EQ(a.weights.size(), b.weights.size());
  int64_t elements = 0, outside = 0;
  for (const auto& [name, expected] : b.weights) {
    if (name.starts_with("m:") || name.starts_with("v:")) continue;
    const std::vector<float>& actual = a.weights.at(name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double d = std::abs(double{actual[i]} - expected[i]);
      ++elements;
      outside += d > 0.01 * kRate;
      ASSERT_LE(d, 0.5 * kRate) << name << "[" << i << "]";
    }
  }
  EXPECT_LE(outside, elements / 1000);
}

class OneLoss : public testing::TestWithParam<Mix> {};

TEST_P(OneLoss, TrainsTheSameModelAsOneRank) {
  const Mix& mix = GetParam();
  const LayoutRun run = run_layout(mix.ranks, kSteps, mix.settings);
  expect_same_training(run, one_rank());
  EXPECT_EQ(run.collectives > 0, mix.ranks > 1);
}

const Mix kMixes[] = {
    {"micro_batch_of_8", 1, {"train.micro_batch_size=8"}},
    {"dp2", 2, {}},
    {"dp2_zero0", 2, parallel({"zero=0"})},
    {"dp2_zero3", 2, parallel({"zero=3"})},
    {"dp8", 8, {}},
    {"dp4_micro2", 4, {"train.micro_batch_size=2"}},
    {"ep2", 2, parallel({"expert=2"})},
    {"ep4", 4, parallel({"expert=4"})},
    {"ep8", 8, parallel({"expert=8"})},
    {"dp4_ep2", 4, parallel({"expert=2"})},
    {"dp4_ep2_zero0", 4, parallel({"expert=2", "zero=0"})},
    {"dp4_ep2_zero3", 4, parallel({"expert=2", "zero=3"})},
    {"tp2", 2, parallel({"tensor=2"})},
    {"tp2_without_sp", 2, parallel({"tensor=2", "sequence_parallel=false"})},
    {"tp4", 4, parallel({"tensor=4"})},
    {"tp2_classic_experts", 2, parallel({"tensor=2", "tp_extend_ep=false"})},
    {"tp2_ep2_extended", 4, parallel({"tensor=2", "expert=2"})},
    {"tp2_ep2_classic", 4, parallel({"tensor=2", "expert=2", "tp_extend_ep=false"})},
    {"tp2_ep4_extended", 8, parallel({"tensor=2", "expert=4"})},
    {"tp4_ep2_extended", 8, parallel({"tensor=4", "expert=2"})},
    {"tp2_dp4_zero3", 8, parallel({"tensor=2", "zero=3"})},
    {"cp2", 2, parallel({"context=2"})},
    {"cp4_ep4", 4, parallel({"context=4", "expert=4"})},
    {"cp2_tp2_ep2", 4, parallel({"context=2", "tensor=2", "expert=2"})},
    {"cp2_tp2_ep4_zero3", 8, parallel({"context=2", "tensor=2", "expert=4", "zero=3"})},
    {"user_mesh", 4, parallel({"mesh={x: 2, y: 2}", "shard=[{op: layers.*.attn.q_b, n: y}]"})},
    {"user_row_over_dp", 2, parallel({"shard=[{op: layers.*.mlp.up, n: dp}]"})},
    {"user_in_and_out", 4,
     parallel({"tensor=2", "shard=[{op: layers.*.attn.q_a, in: [[dp, tp, -]], out: [[dp, -, tp]]}]"})},
    {"user_parameter", 4,
     parallel({"tensor=2", "shard=[{param: model.layers.*.mlp.up_proj.weight, layout: [-, tp]}]"})},
    {"user_conflict", 4,
     parallel({"mesh={x: 2, y: 2}", "shard=[{op: layers.*.mlp.gate, n: y, k: []}, "
                                    "{param: model.layers.*.mlp.gate_proj.weight, layout: [-, x]}]"})},
    {"auto_2", 2, parallel({"tensor=2", "layouts=auto"})},
    {"auto_4", 4, parallel({"tensor=2", "expert=2", "layouts=auto"})},
    {"auto_8", 8, parallel({"tensor=2", "expert=4", "layouts=auto"})},
    {"auto_4_small_memory", 4,
     {"parallel.tensor=2", "parallel.layouts=auto", "compute.memory_limit=1000000"}},
};

INSTANTIATE_TEST_SUITE_P(Mixes, OneLoss, testing::ValuesIn(kMixes),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PaddedValues, TrainTheSameModel) {
  const std::vector<std::string> narrow = {"model.qk_nope_head_dim=16", "model.v_head_dim=8"};
  std::vector<std::string> padded = narrow;
  padded.push_back("compute.pad_value_heads=true");
  const LayoutRun one = run_layout(1, kSteps, narrow);
  expect_same_training(run_layout(1, kSteps, padded), one);
  for (const char* setting : {"parallel.tensor=2", "parallel.expert=2"}) padded.push_back(setting);
  expect_same_training(run_layout(4, kSteps, padded), one);
  padded.push_back("compute.recompute=full");
  expect_same_training(run_layout(4, kSteps, padded), one);
}

TEST(SameBits, TwiceAndWithOtherThreadCounts) {
  const std::vector<std::string> layout = {"parallel.tensor=2", "parallel.expert=2"};
  const LayoutRun first = run_layout(4, 3, layout);
  std::vector<std::string> threaded = layout;
  threaded.push_back("compute.threads=3");
  for (const LayoutRun& again : {run_layout(4, 3, layout), run_layout(4, 3, threaded)}) {
    for (size_t i = 0; i < first.steps.size(); ++i) {
      EXPECT_EQ(first.steps[i].loss, again.steps[i].loss);
      EXPECT_EQ(first.steps[i].grad_norm, again.steps[i].grad_norm);
    }
    for (const auto& [name, values] : first.weights) EXPECT_EQ(values, again.weights.at(name)) << name;
  }
}

TEST(Loads, CountEveryTokenOnce) {
  for (const int ranks : {1, 4}) {
    const LayoutRun run = run_layout(ranks, 1, {"parallel.expert=" + std::to_string(ranks)});
    for (const auto& [layer, load] : run.steps[0].loads) {
      int64_t total = 0;
      for (int64_t n : load) total += n;
      EXPECT_EQ(total, 8 * (layer == 2 ? 31 : 32) * 2) << "layer " << layer;
    }
  }
}

TEST(NonFinite, AStepWithoutANumberChangesNothing) {
  for (const int ranks : {1, 2}) {
    const LayoutRun before = run_layout(ranks, 2, {});
    const LayoutRun after = run_layout(ranks, 3, {}, true, {3});
    EXPECT_TRUE(after.steps[1].applied);
    EXPECT_FALSE(after.steps[2].applied);
    for (const auto& [name, values] : before.weights) EXPECT_EQ(values, after.weights.at(name)) << name;
  }
}

}  // namespace
}  // namespace moetrain
