// Learning rate, batch size and other knobs as pure functions of the step, the consumed samples and
// the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moetrain {

/// Used while fewer than `until_tokens` tokens have been consumed.
struct BatchStage {
  int64_t until_tokens = 0;
  int64_t batch = 0;  ///< sequences of one global batch
};

/// Global batch size over a run: the stages in order, then `batch` to the end.
struct BatchPlan {
  int64_t batch = 0;
  int64_t sequence_length = 0;  ///< tokens of one sequence
  std::vector<BatchStage> ramp;
};

/// A ramp from `from` to (excluding) `to` sequences over the first `until_tokens` tokens, in equal
/// spans whose batches are multiples of `multiple`. DeepSeek-V3: 3072 -> 15360 over 469B tokens.
std::vector<BatchStage> linear_ramp(int64_t from, int64_t to, int64_t until_tokens,
                                    int64_t multiple);

/// How many sequences every step takes, and how steps, samples and tokens correspond.
class BatchSchedule {
 public:
  /// UserError if a size is not positive or the ramp's ends do not rise.
  explicit BatchSchedule(const BatchPlan& plan);
  /// Sequences of the step that starts after `consumed` sequences.
  int64_t batch_at(int64_t consumed) const;
  /// Sequences consumed by steps 1 ... `step`.
  int64_t samples_after(int64_t step) const;
  int64_t tokens_after(int64_t step) const { return samples_after(step) * sequence_length_; }
  /// The first step after which at least `tokens` tokens have been consumed (0 if tokens <= 0).
  int64_t step_reaching(int64_t tokens) const;

 private:
  struct Piece {  // steps first_step + 1 ... take `batch` each
    int64_t first_step, first_sample, batch;
  };
  std::vector<Piece> pieces_;
  int64_t sequence_length_;
};

/// One stage of a learning-rate plan: from where the stage before ended to `to`; a constant stage
/// is at `to` throughout.
struct RatePlanStage {
  enum class Curve { kConstant, kLinear, kCosine };
  enum class Unit { kSteps, kTokens, kForever };
  Curve curve = Curve::kConstant;
  double to = 0;
  int64_t length = 0;  ///< in `unit`; the warm-up counts into the first stage
  Unit unit = Unit::kForever;
};

/// A learning-rate plan. Steps count from 1. Warm-up rises linearly: step s of W has s/W of the
/// rate that the first stage starts with, so step 1 never has rate 0 and step W has all of it.
struct RatePlan {
  double peak = 0;  ///< where the first stage starts (a constant one starts at its own rate)
  int64_t warmup_steps = 0;  ///< may be 0, and may exceed the stages
  std::vector<RatePlanStage> stages;
};

RatePlan constant_rate(double peak, int64_t warmup_steps);
/// Falls from `peak` at the end of the warm-up (or at step 1) to `min` at step `total`.
RatePlan linear_rate(double peak, double min, int64_t warmup_steps, int64_t total);
RatePlan cosine_rate(double peak, double min, int64_t warmup_steps, int64_t total);
/// Warm-up, stable, and a linear decay over the last `decay_steps` of `total`.
RatePlan warmup_stable_decay(double peak, double min, int64_t warmup_steps, int64_t decay_steps,
                             int64_t total);
/// DeepSeek-V3 (arXiv:2412.19437, section 4.2): 2K warm-up steps to 2.2e-4, constant to 10T tokens,
/// cosine to 2.2e-5 over 4.3T, then 2.2e-5 for 333B and 7.3e-6 for 167B.
RatePlan deepseek_v3_rate();

/// The learning rate of every step: nothing but the plan, the batch plan and the step goes in, so a
/// resumed run continues exactly, and a changed plan holds from its first step on.
class LearningRate {
 public:
  /// UserError if a rate is negative or not finite, a length not positive, or step 1 has rate 0.
  LearningRate(const RatePlan& plan, const BatchSchedule& batches);
  /// Rate of step `step` (>= 1). Beyond the last stage: where that ended.
  double at(int64_t step) const;
  /// Step, tokens and rate at every corner of the plan up to `total` steps, for people to read.
  std::string table(int64_t total) const;

 private:
  struct Stage {
    RatePlanStage plan;
    double from;
    int64_t begin_step, end_step;      // of the curve: in the first stage after the warm-up
    int64_t begin_tokens, end_tokens;  // the same in tokens
  };
  double position(const Stage& stage, int64_t step) const;

  BatchSchedule batches_;
  int64_t warmup_steps_;
  double warmup_to_;
  std::vector<Stage> stages_;
};

/// `value` for steps that start with at least `after` tokens (or steps) behind them.
struct ScalarChange {
  int64_t after = 0;
  bool by_tokens = true;
  double value = 0;
};

/// A knob that jumps at given points (MTP lambda, bias update speed): its value for the step that
/// starts after `steps_done` steps and `consumed_tokens` tokens. Later changes win.
double scalar_at(double initial, const std::vector<ScalarChange>& changes, int64_t steps_done,
                 int64_t consumed_tokens);

}  // namespace moetrain
