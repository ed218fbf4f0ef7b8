// From configuration sections to schedules and samplers.
#include "train/plans.h"

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

namespace moetrain {

BatchSchedule batch_schedule(const Config& config) {
  BatchPlan plan;
  plan.batch = config.train.global_batch_size;
  plan.sequence_length = config.data.sequence_length;
  for (const BatchRampStage& s : config.train.batch_ramp) {
    plan.ramp.push_back({s.until_tokens, s.global_batch_size});
  }
  return BatchSchedule(plan);
}

int64_t total_steps(const Config& config, const BatchSchedule& batches) {
  return config.train.steps ? *config.train.steps : batches.step_reaching(*config.train.tokens);
}

LearningRate learning_rate(const Config& config, const BatchSchedule& batches, int64_t steps) {
  const OptimizerConfig& o = config.optimizer;
  const RateSchedule& s = o.schedule;
  const int64_t decay = s.decay_steps.value_or(steps);
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return LearningRate(constant_rate(o.learning_rate, s.warmup_steps), batches);
    case ScheduleKind::kLinear:
      return LearningRate(linear_rate(o.learning_rate, s.min_learning_rate, s.warmup_steps, decay),
                          batches);
    case ScheduleKind::kCosine:
      return LearningRate(cosine_rate(o.learning_rate, s.min_learning_rate, s.warmup_steps, decay),
                          batches);
    case ScheduleKind::kWsd:
      return LearningRate(warmup_stable_decay(o.learning_rate, s.min_learning_rate, s.warmup_steps,
                                              decay, steps),
                          batches);
    case ScheduleKind::kStages: break;
  }
  RatePlan plan;
  plan.peak = o.learning_rate;
  plan.warmup_steps = s.warmup_steps;
  for (const RateStage& stage : s.stages) {
    RatePlanStage out;
    out.curve = static_cast<RatePlanStage::Curve>(stage.curve);
    out.to = stage.learning_rate;
    out.unit = stage.steps    ? RatePlanStage::Unit::kSteps
               : stage.tokens ? RatePlanStage::Unit::kTokens
                              : RatePlanStage::Unit::kForever;
    out.length = stage.steps.value_or(stage.tokens.value_or(0));
    plan.stages.push_back(out);
  }
  return LearningRate(plan, batches);
}

double knob_at(double initial, const std::vector<ChangePoint>& changes, int64_t steps_done,
               int64_t tokens) {
  std::vector<ScalarChange> list;
  for (const ChangePoint& c : changes) {
    list.push_back({c.after_steps.value_or(c.after_tokens.value_or(0)), c.after_tokens.has_value(),
                    c.value});
  }
  return scalar_at(initial, list, steps_done, tokens);
}

namespace {

SamplerOptions sampler_options(const Config& config, const Tokenizer& tokenizer, int64_t samples,
                               const std::vector<DataSource>& sources) {
  SamplerOptions o;
  for (const DataSource& source : sources) {
    o.parts.push_back({source.prefix, sources.size() > 1 ? std::optional(source.weight)
                                                         : std::nullopt});
  }
  o.sequence_length = config.data.sequence_length;
  o.depths = config.model.num_nextn_predict_layers;
  o.samples = samples;
  o.seed = static_cast<uint64_t>(*config.data.seed);
  o.vocab_size = config.model.vocab_size;
  o.eod = tokenizer.eod();
  o.document_mask = config.data.document_mask;
  o.eod_mask_loss = config.data.eod_mask_loss;
  return o;
}

std::string split_text(const Config& config) {
  char text[96];
  const auto& s = config.data.split;
  std::snprintf(text, sizeof text, "%.17g,%.17g,%.17g", s.size() > 0 ? s[0] : 0.0,
                s.size() > 1 ? s[1] : 0.0, s.size() > 2 ? s[2] : 0.0);
  return text;
}

}  // namespace

std::unique_ptr<Sampler> training_sampler(const Config& config, const Tokenizer& tokenizer,
                                          int64_t samples) {
  SamplerOptions o = sampler_options(config, tokenizer, samples, config.data.train);
  o.split = split_text(config);
  return std::make_unique<Sampler>(o, Split::kTrain);
}

std::unique_ptr<Sampler> validation_sampler(const Config& config, const Tokenizer& tokenizer,
                                            int64_t samples) {
  if (!config.data.validation.empty()) {
    const SamplerOptions o =
        sampler_options(config, tokenizer, samples, config.data.validation);
    return std::make_unique<Sampler>(o, Split::kTrain);
  }
  const bool has_share = config.data.split.size() > 1 && config.data.split[1] > 0;
  if (!has_share) return nullptr;
  SamplerOptions o = sampler_options(config, tokenizer, samples, config.data.train);
  o.split = split_text(config);
  return open_optional_sampler(o, Split::kValidation);
}

}  // namespace moetrain
