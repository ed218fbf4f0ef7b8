// Norm, copies, decay, routing bias and the floating point count: BR-01, 08, 12, 31, 45.
#include <gtest/gtest.h>

#include <cmath>

#include "model/flops.h"
#include "run.h"

namespace moetrain {
namespace {

const char* const kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

double norm_of_moments(const Outcome& out) {
  double sum = 0;
  for (const auto& [name, values] : out.states) {
    if (!name.starts_with("m:")) continue;
    for (float x : values) sum += 100.0 * x * x;
  }
  return std::sqrt(sum);
}

// BR-01: root of the sum of squares over every distinct parameter once, wherever experts live.
TEST(GradientNorm, CountsEveryParameterOnce) {
  Trial trial;
  const Outcome one = run(trial);
  EXPECT_NEAR(one.steps[0].grad_norm, norm_of_moments(one), 1e-5 * one.steps[0].grad_norm);
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {2, {"parallel.expert=2"}},
      {4, {"parallel.expert=4"}},
      {4, {"parallel.expert=2", "parallel.zero=0"}},
      {4, {"parallel.tensor=2", "parallel.expert=2"}},
      {4, {"parallel.tensor=4"}},
      {8, {"parallel.expert=4", "parallel.zero=3"}},
      {2, {"parallel.pipeline=2"}},  // BR-13: eight micro-batches through two stages
      {4, {"parallel.pipeline=2", "parallel.expert=2"}}};
  for (const auto& [ranks, settings] : layouts) {
    trial.ranks = ranks;
    trial.settings = settings;
    const double norm = run(trial).steps[0].grad_norm;
    EXPECT_NEAR(norm, one.steps[0].grad_norm, 1e-5 * norm) << ranks << " " << settings[0];
  }
}

// BR-01: one clip factor for all; copies stay equal to the bit. BR-08: also after many steps.
TEST(Copies, StayEqualAfterClippedSteps) {
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {2, {"parallel.expert=2", "parallel.zero=0"}},
      {4, {"parallel.expert=4", "parallel.zero=1"}},
      {2, {"parallel.tensor=2"}},
      {4, {"parallel.tensor=4"}},
      {4, {"parallel.tensor=2", "parallel.expert=2"}},
      {4, {"parallel.context=2", "parallel.tensor=2"}}};
  for (const auto& [ranks, settings] : layouts) {
    Trial trial;
    trial.ranks = ranks;
    trial.steps = 20;
    trial.bias_speed = 0.001;
    trial.settings = settings;
    trial.settings.push_back("optimizer.clip_norm=0.05");
    trial.settings.push_back("router.balance_alpha=0.01");
    trial.settings.push_back("data.sequence_length=16");
    const Outcome out = run(trial);
    EXPECT_GT(out.steps[0].grad_norm, 0.05);
    EXPECT_EQ(out.differing, std::vector<std::string>()) << ranks << " " << settings[0];
  }
}

// BR-08: the joint projection of latent and rotary key, 16 and 8 rows looked at separately.
TEST(SharedRotaryKey, GradientDoesNotDependOnTensorRanks) {
  const std::string name = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight";
  const std::vector<float> whole = run({}).gradient(name);
  ASSERT_EQ(whole.size(), 24u * 64);
  auto part = [](const std::vector<float>& g, bool rotary) {
    return rotary ? std::vector<float>(g.begin() + 16 * 64, g.end())
                  : std::vector<float>(g.begin(), g.begin() + 16 * 64);
  };
  for (const int tensor : {2, 4}) {
    for (const char* sequence : {"true", "false"}) {
      Trial trial;
      trial.ranks = tensor;
      trial.settings = {"parallel.tensor=" + std::to_string(tensor),
                        std::string("parallel.sequence_parallel=") + sequence};
      const std::vector<float> split = run(trial).gradient(name);
      for (const bool rotary : {false, true}) {
        EXPECT_LE(distance(part(split, rotary), part(whole, rotary)), 1e-5) << tensor << rotary;
      }
    }
  }
}

// BR-12: without gradients matrices shrink by 0.999 a step, everything else keeps its bits.
TEST(Decay, ShrinksMatricesOnly) {
  for (const auto& [ranks, layout] : {std::pair{1, "parallel.expert=1"},
                                      {4, "parallel.expert=4"},
                                      {2, "parallel.tensor=2"},
                                      {2, "parallel.pipeline=2"}}) {
    Trial trial;
    trial.ranks = ranks;
    trial.steps = 10;
    trial.rate = 0.01;
    trial.valid = {0};
    trial.settings = {layout, "optimizer.weight_decay=0.1", "model.num_nextn_predict_layers=1"};
    trial.alter = [](const std::string& name, const Box& box, float* values) {
      if (!name.ends_with("correction_bias")) return;
      for (int64_t i = 0; i < box.extent[0]; ++i)
        values[i] = 0.25f * static_cast<float>(box.begin[0] + i);
    };
    const Outcome out = run(trial);
    int matrices = 0, vectors = 0;
    for (const Parameter& p : parameters(t0_model({"model.num_nextn_predict_layers=1"}))) {
      const std::vector<float>&before = out.start.at(p.name), &after = out.states.at(p.name);
      if (p.shape.size() == 1) {
        EXPECT_EQ(after, before) << p.name;
        ++vectors;
        continue;
      }
      std::vector<float> expected = before;
      for (float& x : expected) x *= 0.990045f;
      EXPECT_LE(distance(after, expected), 1e-5) << p.name;
      EXPECT_NE(after, before) << p.name;
      ++matrices;
    }
    EXPECT_EQ(matrices, 35);
    EXPECT_EQ(vectors, 18);
  }
}

// BR-31: in a bf16 model the bias is float32: 0.001 still counts at 1.99.
TEST(RoutingBias, KeepsSmallStepsInABf16Model) {
  Trial trial;
  trial.steps = 10;
  trial.bias_speed = 0.001;
  trial.settings = {"compute.precision=bf16", "data.sequence_length=8"};
  trial.alter = [](const std::string& name, const Box& box, float* values) {
    if (!name.ends_with("correction_bias")) return;
    for (int64_t i = 0; i < box.extent[0]; ++i) values[i] = box.begin[0] + i < 6 ? 10.0f : 1.99f;
  };
  for (const int ranks : {1, 2}) {
    trial.ranks = ranks;
    const Outcome out = run(trial);
    const std::vector<float>& bias = out.states.at(kBias);
    EXPECT_NEAR(bias[6], 2.0, 1e-4);  // never chosen: always below the mean
    EXPECT_NEAR(bias[7], 2.0, 1e-4);
    EXPECT_EQ(out.differing, std::vector<std::string>());
  }
}

// BR-45: by hand, matmuls only, (S + 1) / 2 keys per query, times 3.
TEST(Flops, CountActiveExpertsAndLatentAttention) {
  EXPECT_DOUBLE_EQ(training_flops_per_token(t0_model(), 64), 673728);
  EXPECT_DOUBLE_EQ(forward_flops_per_token(t0_model(), 64), 224576);
  const double mtp = training_flops_per_token(t0_model({"model.num_nextn_predict_layers=1"}), 64);
  EXPECT_GT(mtp, 673728 + 3 * 65536);  // a layer and the head once more
}

}  // namespace
}  // namespace moetrain
