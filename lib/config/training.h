// Sections `optimizer`, `router` and `train`: the recipe, apart from the model and its data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/value.h"

namespace moetrain {

/// Shape of the learning rate, over a whole run or over one stage of it.
enum class Curve : int { kConstant, kLinear, kCosine };
inline const std::vector<std::string> kCurveNames = {"constant", "linear", "cosine"};

/// kWsd: warm-up, stable at the peak, linear decay over the last decay_steps.
enum class ScheduleKind : int { kConstant, kLinear, kCosine, kWsd, kStages };
inline const std::vector<std::string> kScheduleKindNames = {"constant", "linear", "cosine", "wsd",
                                                            "stages"};

/// One stage of a staged plan. Its length is exactly one of steps and tokens; the last may leave
/// out both and lasts to the end. The rate goes along `curve` from where the stage before ended to
/// `learning_rate`; `constant` stays at `learning_rate` throughout. The first stage starts at
/// optimizer.learning_rate.
struct RateStage {
  std::optional<int64_t> steps;
  std::optional<int64_t> tokens;
  Curve curve = Curve::kConstant;
  double learning_rate = 0;
};

/// Learning rate as a function of the step. Warm-up comes first and counts into the first stage.
struct RateSchedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  double min_learning_rate = 0;
  /// linear, cosine: the step at which the minimum is reached, warm-up included; auto: the last
  /// step. wsd: the length of the decay.
  Auto<int64_t> decay_steps;
  std::vector<RateStage> stages;
};

struct OptimizerConfig {
  std::string type = "adamw";
  double learning_rate = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  /// Global gradient norm above which all gradients are scaled down together; 0: never.
  double clip_norm = 1.0;
  RateSchedule schedule;
};

/// Load balance of routed experts.
struct RouterConfig {
  double bias_update_speed = 0.001;
  std::vector<ChangePoint> bias_update_schedule;
  double balance_alpha = 0.0001;
};

/// A smaller global batch at the start of training: used while fewer than `until_tokens` were
/// consumed.
struct BatchRampStage {
  int64_t until_tokens = 0;
  int64_t global_batch_size = 0;
};

struct TrainConfig {
  std::optional<int64_t> steps;
  std::optional<int64_t> tokens;
  int64_t global_batch_size = 0;
  int64_t micro_batch_size = 1;
  std::vector<BatchRampStage> batch_ramp;
  double mtp_lambda = 0.3;
  std::vector<ChangePoint> mtp_lambda_schedule;
  int64_t validation_interval = 0;
  int64_t validation_steps = 10;
  int64_t max_nonfinite_steps = 3;
};

}  // namespace moetrain
