// Routings and sizes at the edge: idle ranks, idle experts, sequences of a few tokens: BR-14,
// 15, 16.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "run.h"

namespace moetrain {
namespace {

/// Biases that only let these experts be chosen.
auto only(std::vector<int64_t> chosen) {
  return [chosen](const std::string& name, const Box& box, float* values) {
    if (!name.ends_with("correction_bias")) return;
    for (int64_t i = 0; i < box.extent[0]; ++i) {
      for (int64_t e : chosen) {
        if (e == box.begin[0] + i) values[i] = 10.0f;
      }
    }
  };
}

void expect_same_losses(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a.steps[i].loss));
    EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, tolerance * b.steps[i].loss) << "step " << i + 1;
  }
}

/// Whether moments of expert `e` are all exactly zero, or none of its matrices.
bool is_idle(const Outcome& out, int64_t e) {
  bool idle = true;
  for (const char* kind : {"gate_proj", "up_proj", "down_proj"}) {
    const auto& m = out.states.at(std::string("m:model.layers.1.mlp.experts.") + kind + ".weight");
    const int64_t n = static_cast<int64_t>(m.size()) / 8;
    for (int64_t i = 0; i < n; ++i) idle = idle && m[e * n + i] == 0.0f;
  }
  return idle;
}

// BR-14: every token goes to the experts of one rank for 20 steps.
TEST(IdleRanks, TrainLikeOneRank) {
  Trial trial;
  trial.steps = 20;
  trial.alter = only({0, 1});
  trial.settings = {"data.sequence_length=16", "router.balance_alpha=0.01"};
  const Outcome one = run(trial);
  EXPECT_EQ(one.steps[19].loads.at(1), (std::vector<int64_t>{128, 128, 0, 0, 0, 0, 0, 0}));
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {4, {"parallel.expert=4"}},
      {4, {"parallel.expert=4", "parallel.dispatch=allgather"}},
      {4, {"parallel.tensor=2", "parallel.expert=2"}},
      {8, {"parallel.expert=8"}},
      {2, {"parallel.pipeline=2"}},  // the first stage holds the dense layer only
      {4, {"parallel.pipeline=2", "parallel.expert=2"}}};
  for (const auto& [ranks, settings] : layouts) {
    Trial split = trial;
    split.ranks = ranks;
    split.settings.insert(split.settings.end(), settings.begin(), settings.end());
    const Outcome out = run(split);
    expect_same_losses(out, one, 1e-3);
    EXPECT_EQ(out.steps[19].loads, one.steps[19].loads);
    for (int64_t e = 0; e < 8; ++e) EXPECT_EQ(is_idle(out, e), e >= 2) << e << " " << settings[0];
  }
}

// BR-14: one empty expert in the middle.
TEST(IdleExpert, HasAZeroGradient) {
  Trial trial;
  trial.steps = 3;
  trial.alter = [](const std::string& name, const Box& box, float* values) {
    if (!name.ends_with("correction_bias")) return;
    for (int64_t i = 0; i < box.extent[0]; ++i) {  // its group may still win through expert 2
      const int64_t e = box.begin[0] + i;
      values[i] = e == 3 ? 0.0f : e == 2 ? 20.0f : 10.0f;
    }
  };
  trial.settings = {"data.sequence_length=16"};
  const Outcome one = run(trial);
  EXPECT_EQ(one.steps[0].loads.at(1)[3], 0);
  trial.ranks = 4;
  trial.settings.push_back("parallel.expert=4");
  const Outcome out = run(trial);
  expect_same_losses(out, one, 1e-5);
  for (int64_t e = 0; e < 8; ++e) EXPECT_EQ(is_idle(out, e), e == 3) << e;
}

// BR-15: lengths that tensor ranks do not divide, or that are shorter than the ranks.
TEST(OddLengths, TrainTheSameOrAreRefusedFirst) {
  int trained = 0, refused = 0;
  for (const auto& [length, tensor] :
       {std::pair{63, 2}, {65, 2}, {2, 4}, {1, 2}, {1, 4}, {3, 2}, {3, 4}}) {
    Trial trial;
    trial.settings = {"data.sequence_length=" + std::to_string(length)};
    const Outcome one = run(trial);
    trial.ranks = tensor;
    trial.settings.push_back("parallel.tensor=" + std::to_string(tensor));
    const Outcome split = run(trial);
    EXPECT_NEAR(split.steps[0].loss, one.steps[0].loss, 1e-5 * one.steps[0].loss) << length;
    EXPECT_NEAR(split.steps[0].grad_norm, one.steps[0].grad_norm, 1e-5 * one.steps[0].grad_norm);
    ++trained;
    trial.settings.push_back("parallel.sequence_parallel=true");
    try {
      run(trial);
    } catch (const UserError& e) {
      const std::string said = e.what();
      EXPECT_NE(said.find("sequence_length"), std::string::npos) << said;
      EXPECT_NE(said.find("tensor"), std::string::npos) << said;
      EXPECT_NE(said.find("nearest"), std::string::npos) << said;
      ++refused;
    }
  }
  EXPECT_EQ(trained, 7);
  EXPECT_EQ(refused, 7);
}

// Sequences of one to three tokens with MTP layers that have fewer targets, or none.
TEST(ShortSequences, TrainWithMtp) {
  for (const int length : {1, 2, 3}) {
    Trial trial;
    trial.steps = 2;
    trial.settings = {"data.sequence_length=" + std::to_string(length),
                      "model.num_nextn_predict_layers=" + std::to_string(length - 1),
                      "router.balance_alpha=0.01"};
    const Outcome one = run(trial);
    EXPECT_NEAR(one.steps[0].main_loss, std::log(512.0), 0.5) << length;
    for (const char* layout : {"parallel.expert=4", "parallel.expert=1"}) {
      Trial split = trial;
      split.ranks = 4;
      split.settings.push_back(layout);
      expect_same_losses(run(split), one, 1e-4);
    }
  }
}

// BR-16: the widest allowed choice, and the narrowest.
TEST(ExpertGroups, ExtremesTrain) {
  for (const std::vector<std::string>& groups :
       {std::vector<std::string>{"model.n_group=1", "model.topk_group=1",
                                 "model.num_experts_per_tok=8"},
        {"model.n_group=1", "model.topk_group=1", "model.num_experts_per_tok=1"},
        {"model.n_group=4", "model.topk_group=4", "model.num_experts_per_tok=8"}}) {
    Trial trial;
    trial.steps = 3;
    trial.settings = groups;
    trial.settings.push_back("data.sequence_length=16");
    const Outcome one = run(trial);
    trial.ranks = 8;
    trial.settings.push_back("parallel.expert=8");
    expect_same_losses(run(trial), one, 1e-4);
  }
}

// BR-04: loads, balance loss and bias count every token once, whatever is computed again.
TEST(Recompute, ChangesNoNumber) {
  Trial trial;
  trial.steps = 10;
  trial.bias_speed = 0.001;
  trial.settings = {"router.balance_alpha=0.01", "compute.recompute=none"};
  const Outcome none = run(trial);
  for (const StepResult& step : none.steps) {
    int64_t chosen = 0;
    for (int64_t n : step.loads.at(1)) chosen += n;
    EXPECT_EQ(chosen, 1024);  // 8 x 64 tokens, two experts each
  }
  for (const char* kind : {"selective", "full"}) {
    trial.settings[1] = std::string("compute.recompute=") + kind;
    const Outcome again = run(trial);
    for (size_t i = 0; i < none.steps.size(); ++i) {
      EXPECT_EQ(again.steps[i].balance_loss, none.steps[i].balance_loss) << kind;
      EXPECT_EQ(again.steps[i].loads, none.steps[i].loads) << kind;
      EXPECT_EQ(again.steps[i].loss, none.steps[i].loss) << kind;
    }
    EXPECT_EQ(again.states, none.states) << kind;
  }
}

// One sequence in the whole batch, all ranks on it.
TEST(BatchOfOne, SplitsOverTensorContextAndExperts) {
  Trial trial;
  trial.steps = 3;
  trial.settings = {"train.global_batch_size=1"};
  const Outcome one = run(trial);
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.tensor=4"},
        {"parallel.context=4", "parallel.expert=4"},
        {"parallel.tensor=2", "parallel.context=2", "parallel.expert=2"}}) {
    Trial split = trial;
    split.ranks = 4;
    split.settings.insert(split.settings.end(), layout.begin(), layout.end());
    expect_same_losses(run(split), one, 1e-4);
  }
}

}  // namespace
}  // namespace moetrain
