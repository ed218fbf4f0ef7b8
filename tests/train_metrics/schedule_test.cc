// Learning-rate, batch and scalar schedules at all their edges.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace moetrain {
namespace {

using Curve = RatePlanStage::Curve;
using Unit = RatePlanStage::Unit;

constexpr double kPeak = 1e-3, kMin = 1e-4;

LearningRate with(const RatePlan& plan, int64_t batch = 4, int64_t length = 8) {
  return LearningRate(plan, BatchSchedule({batch, length, {}}));
}

TEST(LearningRate, EdgesOfWarmupAndTotal) {
  const std::pair<int64_t, int64_t> cases[] = {{0, 10},  {1, 10},  {9, 10},
                                               {10, 10}, {20, 10}, {0, 1}};
  for (const auto& [warmup, total] : cases) {
    for (const auto& plan : {constant_rate(kPeak, warmup), linear_rate(kPeak, kMin, warmup, total),
                             cosine_rate(kPeak, kMin, warmup, total)}) {
      SCOPED_TRACE(testing::Message() << "warm-up " << warmup << " total " << total);
      const LearningRate rate = with(plan);
      const bool decays = plan.stages[0].curve != Curve::kConstant;
      double before = 0;
      for (int64_t step = 1; step <= total; ++step) {
        const double r = rate.at(step);
        EXPECT_TRUE(std::isfinite(r) && r > 0 && r <= kPeak) << step << " " << r;
        if (step <= warmup) {
          EXPECT_DOUBLE_EQ(r, kPeak * static_cast<double>(step) / static_cast<double>(warmup));
          EXPECT_GT(r, before);
        } else if (decays) {
          EXPECT_TRUE(step == 1 || r < before) << step;
        } else {
          EXPECT_EQ(r, kPeak);
        }
        before = r;
      }
      if (warmup <= total) {
        EXPECT_EQ(rate.at(std::max<int64_t>(warmup, 1)), kPeak);
      }
      if (decays && std::max<int64_t>(warmup, 1) < total) {
        EXPECT_EQ(rate.at(total), kMin);
        EXPECT_EQ(rate.at(total + 100), kMin);
      }
    }
  }
}

TEST(LearningRate, CurvesHalfWay) {
  EXPECT_DOUBLE_EQ(with(linear_rate(1, 0.2, 1, 11)).at(6), 0.6);
  EXPECT_DOUBLE_EQ(with(cosine_rate(1, 0.2, 1, 11)).at(6), 0.6);
  EXPECT_NEAR(with(cosine_rate(1, 0, 0, 5)).at(2), 0.5 * (1 + std::cos(M_PI / 4)), 1e-15);
}

TEST(LearningRate, WarmupStableDecay) {
  const LearningRate rate = with(warmup_stable_decay(1, 0.1, 4, 10, 30));
  EXPECT_EQ(rate.at(1), 0.25);
  EXPECT_EQ(rate.at(4), 1);
  EXPECT_EQ(rate.at(20), 1);
  EXPECT_DOUBLE_EQ(rate.at(25), 0.55);
  EXPECT_EQ(rate.at(30), 0.1);
  EXPECT_EQ(with(warmup_stable_decay(1, 0.1, 0, 50, 30)).at(1), 1);
  EXPECT_EQ(with(warmup_stable_decay(1, 0.1, 0, 50, 30)).at(30), 0.1);
}

TEST(LearningRate, DeepSeekV3) {
  const int64_t length = 4096, batch = 15360, per_step = length * batch;
  const BatchSchedule batches({batch, length, linear_ramp(3072, batch, 469'000'000'000, 3072)});
  const LearningRate rate(deepseek_v3_rate(), batches);
  EXPECT_DOUBLE_EQ(rate.at(1), 2.2e-4 / 2000);
  EXPECT_EQ(rate.at(2000), 2.2e-4);
  EXPECT_EQ(rate.at(2001), 2.2e-4);
  const auto at_tokens = [&](double tokens) {
    return rate.at(batches.step_reaching(static_cast<int64_t>(tokens)));
  };
  EXPECT_EQ(at_tokens(9.99e12), 2.2e-4);
  EXPECT_NEAR(at_tokens(12.15e12), 0.5 * (2.2e-4 + 2.2e-5), 5e-9);  // within one step
  EXPECT_EQ(at_tokens(14.3e12), 2.2e-5);
  EXPECT_EQ(at_tokens(14.5e12), 2.2e-5);
  EXPECT_EQ(at_tokens(14.64e12), 7.3e-6);
  EXPECT_EQ(at_tokens(14.8e12), 7.3e-6);
  EXPECT_EQ(batches.batch_at(0), 3072);
  EXPECT_EQ(batches.batch_at(batches.samples_after(batches.step_reaching(469'000'000'000))), batch);
  EXPECT_LT(batches.tokens_after(batches.step_reaching(14'800'000'000'000)),
            14'800'000'000'000 + per_step);
  EXPECT_NE(rate.table(300000).find("2.2e-05"), std::string::npos);
}

TEST(LearningRate, StagesInStepsAndTokensMeet) {
  // 32 tokens a step: 5 steps constant, then 320 tokens (10 steps) linear, then for ever.
  const LearningRate rate = with({1,
                                  0,
                                  {{Curve::kConstant, 1, 5, Unit::kSteps},
                                   {Curve::kLinear, 0.5, 320, Unit::kTokens},
                                   {Curve::kConstant, 0.25, 0, Unit::kForever}}});
  EXPECT_EQ(rate.at(5), 1);
  EXPECT_DOUBLE_EQ(rate.at(6), 0.95);
  EXPECT_EQ(rate.at(15), 0.5);
  EXPECT_EQ(rate.at(16), 0.25);
}

TEST(LearningRate, RefusesNonsense) {
  EXPECT_THROW(with(constant_rate(0, 0)), UserError);
  EXPECT_THROW(with(constant_rate(-1, 0)), UserError);
  EXPECT_THROW(with(constant_rate(NAN, 0)), UserError);
  EXPECT_THROW(with(constant_rate(1, -1)), UserError);
  EXPECT_THROW(with(cosine_rate(1, 0, 0, 0)), UserError);
  EXPECT_THROW(with({1, 0, {}}), UserError);
  EXPECT_THROW(with({1, 0, {{Curve::kLinear, 1, 0, Unit::kForever}}}), UserError);
  EXPECT_THROW(
      with({1,
            0,
            {{Curve::kConstant, 1, 0, Unit::kForever}, {Curve::kConstant, 1, 1, Unit::kSteps}}}),
      UserError);
}

TEST(BatchSchedule, RampCorrespondsBothWays) {
  // Length 10: 2 sequences while fewer than 95 tokens (samples 0 ... 9), 3 while fewer than 150,
  // then 5.
  const BatchSchedule batches({5, 10, {{95, 2}, {150, 3}}});
  std::vector<int64_t> sizes;
  int64_t consumed = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    sizes.push_back(batches.batch_at(consumed));
    consumed += sizes.back();
    EXPECT_EQ(batches.samples_after(step), consumed) << step;
    for (int64_t tokens = (consumed - sizes.back()) * 10 + 1; tokens <= consumed * 10; ++tokens) {
      EXPECT_EQ(batches.step_reaching(tokens), step) << tokens;
    }
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2, 2, 2, 3, 3, 5, 5, 5}));
  EXPECT_EQ(batches.samples_after(0), 0);
  EXPECT_EQ(batches.step_reaching(0), 0);
  EXPECT_THROW(BatchSchedule({0, 10, {}}), UserError);
  EXPECT_THROW(BatchSchedule({5, 10, {{100, 2}, {50, 3}}}), UserError);
  // A stage shorter than the step before it is passed over.
  EXPECT_EQ(BatchSchedule({5, 10, {{10, 4}, {30, 3}}}).batch_at(4), 5);
}

TEST(BatchSchedule, LinearRampIsMonotoneAndAligned) {
  const auto ramp = linear_ramp(8, 30, 1000, 4);
  ASSERT_EQ(ramp.size(), 6u);
  EXPECT_EQ(ramp.front().batch, 8);
  EXPECT_EQ(ramp.back().batch, 28);
  EXPECT_EQ(ramp.back().until_tokens, 1000);
  EXPECT_TRUE(linear_ramp(8, 8, 1000, 4).empty());
}

TEST(Scalars, JumpAtTokensAndSteps) {
  const std::vector<ScalarChange> changes{{100, true, 0.1}, {50, false, 0.0}};
  EXPECT_EQ(scalar_at(0.3, changes, 0, 99), 0.3);
  EXPECT_EQ(scalar_at(0.3, changes, 0, 100), 0.1);
  EXPECT_EQ(scalar_at(0.3, changes, 50, 100), 0.0);
  EXPECT_EQ(scalar_at(0.3, {}, 7, 7), 0.3);
}

}  // namespace
}  // namespace moetrain
