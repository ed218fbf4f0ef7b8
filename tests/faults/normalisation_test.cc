// Losses and gradients are normalised over the whole global batch, whatever cuts it: BR-02, 03, 05,
// 11, 13.
#include <gtest/gtest.h>

#include <cmath>

#include "run.h"

namespace moetrain {
namespace {

const double kUniform = std::log(512.0);  // loss of equal logits

std::string micro(int size) { return "train.micro_batch_size=" + std::to_string(size); }
std::string expert(int size) { return "parallel.expert=" + std::to_string(size); }

/// A head of zeros gives equal logits.
void zero_head(const std::string& name, const Box& box, float* values) {
  if (name == "lm_head.weight") std::fill(values, values + numel(box.extent), 0.0f);
}

void expect_same_gradients(const Outcome& a, const Outcome& b, double tolerance) {
  int64_t compared = 0;
  for (const auto& [name, values] : b.states) {
    if (!name.starts_with("m:")) continue;
    EXPECT_LE(distance(a.states.at(name), values), tolerance) << name;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

// BR-02: the ratio is 1, not the number of expert ranks.
TEST(ExpertGradients, AreTheSameForAnyNumberOfExpertRanks) {
  const Outcome one = run({});
  for (const int ranks : {2, 4, 8}) {
    Trial trial;
    trial.ranks = ranks;
    trial.settings = {expert(ranks)};
    const Outcome split = run(trial);
    for (const char* kind : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = std::string("model.layers.1.mlp.experts.") + kind + ".weight";
      const std::vector<float> g = split.gradient(name), expected = one.gradient(name);
      EXPECT_LE(distance(g, expected), 1e-5) << name << " on " << ranks;
      double a = 0, b = 0;
      for (size_t i = 0; i < g.size(); ++i)
        a += double{g[i]} * g[i], b += double{expected[i]} * expected[i];
      EXPECT_GT(b, 0);
      EXPECT_NEAR(std::sqrt(a / b), 1.0, 1e-5) << name << " on " << ranks;
    }
  }
}

// BR-03 (a)
TEST(BalanceLoss, GradientDoesNotDependOnMicroBatches) {
  const std::string router = "model.layers.1.mlp.gate.weight";
  auto with = [](int ranks, const std::string& cut, double alpha) {
    Trial trial;
    trial.ranks = ranks;
    trial.settings = {cut, "router.balance_alpha=" + std::to_string(alpha)};
    return run(trial);
  };
  const Outcome ones = with(1, micro(1), 0.1);
  EXPECT_GT(distance(ones.gradient(router), with(1, micro(1), 0).gradient(router)), 1e-3);
  for (const Outcome& other : {with(1, micro(2), 0.1), with(1, micro(8), 0.1),
                               with(2, micro(1), 0.1), with(4, micro(2), 0.1)}) {
    EXPECT_LE(distance(other.gradient(router), ones.gradient(router)), 1e-5);
    EXPECT_NEAR(other.steps[0].balance_loss, ones.steps[0].balance_loss,
                1e-5 * ones.steps[0].balance_loss);
  }
}

// BR-05: the two losses are means over their own 64 and 63 targets per sample.
TEST(MtpLoss, IsAMeanOverItsOwnTargets) {
  Trial trial;
  trial.settings = {"model.num_nextn_predict_layers=1", micro(1)};
  trial.alter = zero_head;
  const StepResult equal = run(trial).steps[0];
  EXPECT_NEAR(equal.main_loss, kUniform, 1e-5);
  EXPECT_NEAR(equal.mtp_loss, kUniform, 1e-5);
  EXPECT_NEAR(equal.loss, 1.3 * kUniform, 2e-5);

  trial.alter = {};
  const Outcome one_by_one = run(trial);
  const StepResult first = one_by_one.steps[0];
  EXPECT_NEAR(first.mtp_loss, 6.238, 0.05 * 6.238);
  EXPECT_NEAR(first.loss, first.main_loss + 0.3 * first.mtp_loss, 1e-5);
  for (const int size : {2, 4, 8}) {
    trial.settings[1] = micro(size);
    const Outcome other = run(trial);
    const std::string name = "model.layers.2.eh_proj.weight";
    EXPECT_LE(distance(other.gradient(name), one_by_one.gradient(name)), 1e-5) << size;
    EXPECT_NEAR(other.steps[0].mtp_loss, first.mtp_loss, 1e-5 * first.mtp_loss);
  }
}

// BR-05: the weight multiplies the gradient once, not per micro-batch.
TEST(MtpLoss, WeightScalesItsGradient) {
  Trial trial;
  trial.settings = {"model.num_nextn_predict_layers=1", micro(2)};
  const std::string name = "model.layers.2.eh_proj.weight";
  std::vector<float> full = run(trial).gradient(name);
  trial.mtp_lambda = 0.1;
  for (float& x : full) x /= 3;
  EXPECT_LE(distance(run(trial).gradient(name), full), 1e-5);
}

// BR-11: 64, 64, 8 and 1 valid tokens are 137 tokens with equal weights.
TEST(UnevenSamples, EveryTokenWeighsTheSame) {
  Trial trial;
  trial.settings = {"train.global_batch_size=4", micro(4)};
  trial.valid = {64, 64, 8, 1};
  const Outcome whole = run(trial);
  // The definition: each sample alone gives its mean; the batch is their mean weighted by tokens.
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) {
    Trial alone = trial;
    alone.valid = {0, 0, 0, 0};
    alone.valid[i] = trial.valid[i];
    sum += run(alone).steps[0].main_loss * static_cast<double>(trial.valid[i]);
  }
  EXPECT_NEAR(whole.steps[0].main_loss, sum / 137, 1e-6 * sum / 137);
  for (const auto& order : {std::vector<int64_t>{64, 64, 8, 1}, {1, 8, 64, 64}}) {
    Trial reference = trial;
    reference.valid = order;
    const Outcome expected = run(reference);
    for (const auto& [ranks, size] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
      Trial cut = reference;
      cut.ranks = ranks;
      cut.settings[1] = micro(size);
      const Outcome got = run(cut);
      EXPECT_NEAR(got.steps[0].loss, expected.steps[0].loss, 1e-6 * expected.steps[0].loss);
      expect_same_gradients(got, expected, 2e-6);
    }
  }
}

// BR-11: with MTP each depth has its own count, also when a sample is shorter than the depth.
TEST(UnevenSamples, EveryDepthHasItsOwnCount) {
  Trial trial;
  trial.settings = {"train.global_batch_size=4", micro(1), "model.num_nextn_predict_layers=1"};
  trial.valid = {64, 3, 0, 1};
  trial.alter = zero_head;
  for (const int ranks : {1, 2, 4}) {
    trial.ranks = ranks;
    const StepResult r = run(trial).steps[0];
    EXPECT_NEAR(r.main_loss, kUniform, 1e-5) << ranks;
    EXPECT_NEAR(r.mtp_loss, kUniform, 1e-5) << ranks;
  }
}

// BR-13: the same micro-batch eight times gives the gradient of once.
TEST(MicroBatches, EqualOnesGiveTheGradientOfOne) {
  Trial once;
  once.settings = {"train.global_batch_size=1"};
  once.one_sample = true;
  Trial eight = once;
  eight.settings = {"train.global_batch_size=8"};
  const Outcome expected = run(once);
  const Outcome got = run(eight);
  EXPECT_NEAR(got.steps[0].grad_norm, expected.steps[0].grad_norm,
              1e-5 * expected.steps[0].grad_norm);
  expect_same_gradients(got, expected, 1e-5);
}

// No valid token at all is no NaN.
TEST(NoValidToken, GivesZeroLossAndGradient) {
  for (const int ranks : {1, 2}) {
    Trial trial;
    trial.ranks = ranks;
    trial.valid = {0};
    trial.settings = {"model.num_nextn_predict_layers=1"};
    const Outcome out = run(trial);
    EXPECT_EQ(out.steps[0].loss, 0);
    EXPECT_EQ(out.steps[0].grad_norm, 0);
    EXPECT_TRUE(out.steps[0].applied);
    EXPECT_EQ(out.states.at("lm_head.weight"), out.start.at("lm_head.weight"));
  }
}

}  // namespace
}  // namespace moetrain
