// Schedules as pure functions; all bookkeeping is done once, in the constructors.
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

int64_t saturating_add(int64_t a, int64_t b) { return a > kForever - b ? kForever : a + b; }

using Curve = RatePlanStage::Curve;
using Unit = RatePlanStage::Unit;

}  // namespace

std::vector<BatchStage> linear_ramp(int64_t from, int64_t to, int64_t until_tokens,
                                    int64_t multiple) {
  MT_CHECK(from > 0 && to >= from && multiple > 0 && until_tokens >= 0, from, " ", to);
  const int64_t spans = ceil_div(to - from, multiple);
  std::vector<BatchStage> stages;
  for (int64_t i = 0; i < spans; ++i) {
    const double end =
        static_cast<double>(until_tokens) * static_cast<double>(i + 1) / static_cast<double>(spans);
    stages.push_back(
        {i + 1 == spans ? until_tokens : static_cast<int64_t>(end), from + i * multiple});
  }
  return stages;
}

BatchSchedule::BatchSchedule(const BatchPlan& plan) : sequence_length_(plan.sequence_length) {
  const auto need = [](bool good, const std::string& message) {
    if (!good) throw UserError(message);
  };
  need(plan.batch > 0, cat("the global batch size must be positive, not ", plan.batch));
  need(plan.sequence_length > 0,
       cat("the sequence length must be positive, not ", plan.sequence_length));
  int64_t step = 0, sample = 0, last_end = 0;
  for (const BatchStage& stage : plan.ramp) {
    need(stage.batch > 0, cat("a batch ramp stage has the size ", stage.batch));
    need(stage.until_tokens >= last_end,
         cat("the batch ramp's ends must rise: ", stage.until_tokens, " after ", last_end));
    last_end = stage.until_tokens;
    // A stage rules while consumed tokens < until, that is while samples < until / length, up.
    const int64_t end = ceil_div(stage.until_tokens, sequence_length_);
    if (sample >= end) continue;
    pieces_.push_back({step, sample, stage.batch});
    const int64_t steps = ceil_div(end - sample, stage.batch);
    step += steps;
    sample += steps * stage.batch;
  }
  pieces_.push_back({step, sample, plan.batch});
}

int64_t BatchSchedule::batch_at(int64_t consumed) const {
  const auto after = std::upper_bound(pieces_.begin() + 1, pieces_.end(), consumed,
                                      [](int64_t c, const Piece& p) { return c < p.first_sample; });
  return std::prev(after)->batch;
}

int64_t BatchSchedule::samples_after(int64_t step) const {
  const auto after = std::upper_bound(pieces_.begin() + 1, pieces_.end(), step,
                                      [](int64_t s, const Piece& p) { return s < p.first_step; });
  const Piece& piece = *std::prev(after);
  return piece.first_sample + (step - piece.first_step) * piece.batch;
}

int64_t BatchSchedule::step_reaching(int64_t tokens) const {
  if (tokens <= 0) return 0;
  const int64_t samples = ceil_div(tokens, sequence_length_);
  const auto after = std::lower_bound(pieces_.begin() + 1, pieces_.end(), samples,
                                      [](const Piece& p, int64_t s) { return p.first_sample < s; });
  const Piece& piece = *std::prev(after);
  return piece.first_step + ceil_div(samples - piece.first_sample, piece.batch);
}

RatePlan constant_rate(double peak, int64_t warmup_steps) {
  return {peak, warmup_steps, {{Curve::kConstant, peak, 0, Unit::kForever}}};
}

RatePlan linear_rate(double peak, double min, int64_t warmup_steps, int64_t total) {
  return {peak, warmup_steps, {{Curve::kLinear, min, total, Unit::kSteps}}};
}

RatePlan cosine_rate(double peak, double min, int64_t warmup_steps, int64_t total) {
  return {peak, warmup_steps, {{Curve::kCosine, min, total, Unit::kSteps}}};
}

RatePlan warmup_stable_decay(double peak, double min, int64_t warmup_steps, int64_t decay_steps,
                             int64_t total) {
  RatePlan plan{peak, warmup_steps, {}};
  if (total > decay_steps) {
    plan.stages.push_back({Curve::kConstant, peak, total - decay_steps, Unit::kSteps});
  }
  plan.stages.push_back({Curve::kLinear, min, std::min(decay_steps, total), Unit::kSteps});
  return plan;
}

RatePlan deepseek_v3_rate() {
  constexpr int64_t kBillion = 1'000'000'000;
  return {2.2e-4,
          2000,
          {{Curve::kConstant, 2.2e-4, 10'000 * kBillion, Unit::kTokens},
           {Curve::kCosine, 2.2e-5, 4'300 * kBillion, Unit::kTokens},
           {Curve::kConstant, 2.2e-5, 333 * kBillion, Unit::kTokens},
           {Curve::kConstant, 7.3e-6, 167 * kBillion, Unit::kTokens}}};
}

LearningRate::LearningRate(const RatePlan& plan, const BatchSchedule& batches)
    : batches_(batches), warmup_steps_(plan.warmup_steps), warmup_to_(plan.peak) {
  std::vector<Diagnostic> faults;
  const auto need = [&](bool good, const std::string& message) {
    if (!good) faults.push_back({"", "learning-rate plan: " + message});
  };
  const auto is_rate = [](double r) { return std::isfinite(r) && r >= 0; };
  need(is_rate(plan.peak), cat("the peak must be a number >= 0, not ", plan.peak));
  need(plan.warmup_steps >= 0, cat("warm-up of ", plan.warmup_steps, " steps"));
  need(!plan.stages.empty(), "it has no stage");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const RatePlanStage& stage = plan.stages[i];
    need(is_rate(stage.to), cat("stage ", i + 1, " goes to ", stage.to));
    need(stage.unit == Unit::kForever || stage.length > 0,
         cat("stage ", i + 1, " has the length ", stage.length));
    need(stage.unit != Unit::kForever ||
             (i + 1 == plan.stages.size() && stage.curve == Curve::kConstant),
         cat("stage ", i + 1, " has no end: only a last, constant stage may lack one"));
  }
  if (!faults.empty()) throw UserError(std::move(faults));

  if (plan.stages[0].curve == Curve::kConstant) warmup_to_ = plan.stages[0].to;
  double from = warmup_to_;
  // The first curve starts where the warm-up ends, and without one at step 1: that step has the
  // peak.
  const int64_t anchor = std::max<int64_t>(plan.warmup_steps, 1);
  int64_t begin_step = 0, begin_tokens = 0;
  for (const RatePlanStage& stage : plan.stages) {
    Stage s{stage, from, begin_step, kForever, begin_tokens, kForever};
    if (stage.unit == Unit::kSteps) {
      s.end_step = saturating_add(begin_step, stage.length);
      s.end_tokens = batches_.tokens_after(s.end_step);
    } else if (stage.unit == Unit::kTokens) {
      s.end_tokens = saturating_add(begin_tokens, stage.length);
      s.end_step = batches_.step_reaching(s.end_tokens);
    }
    begin_step = s.end_step;
    begin_tokens = s.end_tokens;
    if (s.begin_step < anchor) {
      s.begin_step = anchor;
      s.begin_tokens = batches_.tokens_after(anchor);
    }
    stages_.push_back(s);
    from = stage.to;
  }
  if (!(at(1) > 0)) throw UserError("learning-rate plan: the first step would have rate 0");
}

double LearningRate::position(const Stage& stage, int64_t step) const {
  const bool by_tokens = stage.plan.unit == Unit::kTokens;
  const int64_t here = by_tokens ? batches_.tokens_after(step) : step;
  const int64_t begin = by_tokens ? stage.begin_tokens : stage.begin_step;
  const int64_t end = by_tokens ? stage.end_tokens : stage.end_step;
  if (here <= begin) return 0;
  if (here >= end) return 1;
  return static_cast<double>(here - begin) / static_cast<double>(end - begin);
}

double LearningRate::at(int64_t step) const {
  MT_CHECK(step >= 1, "steps count from 1, not ", step);
  if (step <= warmup_steps_) {
    return warmup_to_ * (static_cast<double>(step) / static_cast<double>(warmup_steps_));
  }
  for (const Stage& stage : stages_) {
    if (step > stage.end_step) continue;
    const double x = position(stage, step), to = stage.plan.to;
    switch (stage.plan.curve) {
      case Curve::kConstant:
        return to;
      case Curve::kLinear:
        return x < 1 ? stage.from + (to - stage.from) * x : to;
      case Curve::kCosine:
        return to + (stage.from - to) * 0.5 * (1 + std::cos(std::numbers::pi * x));
    }
  }
  return stages_.back().plan.to;
}

std::string LearningRate::table(int64_t total) const {
  std::set<int64_t> steps{1, total};
  if (warmup_steps_ > 0) steps.insert(warmup_steps_);
  for (const Stage& stage : stages_) {
    if (stage.end_step >= total) break;
    steps.insert(stage.end_step);
    steps.insert(stage.end_step + 1);
  }
  std::string text = "step  tokens  batch  learning rate\n";
  for (const int64_t step : steps) {
    if (step < 1 || step > total) continue;
    text += cat(step, "  ", batches_.tokens_after(step), "  ",
                batches_.batch_at(batches_.samples_after(step - 1)), "  ", at(step), "\n");
  }
  return text;
}

double scalar_at(double initial, const std::vector<ScalarChange>& changes, int64_t steps_done,
                 int64_t consumed_tokens) {
  double value = initial;
  for (const ScalarChange& change : changes) {
    if ((change.by_tokens ? consumed_tokens : steps_done) >= change.after) value = change.value;
  }
  return value;
}

}  // namespace moetrain
