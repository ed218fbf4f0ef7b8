// From configuration sections to the pure schedules of a run and the samplers of its data.
#pragma once

#include <memory>

#include "config/config.h"
#include "data/sampler.h"
#include "train/schedule.h"

namespace moetrain {

class Tokenizer;

BatchSchedule batch_schedule(const Config& config);
/// Steps of the whole run: train.steps, or as many as train.tokens needs.
int64_t total_steps(const Config& config, const BatchSchedule& batches);
LearningRate learning_rate(const Config& config, const BatchSchedule& batches, int64_t steps);
/// A scheduled knob at the step that starts after `steps_done` steps and `tokens` tokens.
double knob_at(double initial, const std::vector<ChangePoint>& changes, int64_t steps_done,
               int64_t tokens);

/// The training data for `samples` samples. UserError names faulty files.
std::unique_ptr<Sampler> training_sampler(const Config& config, const Tokenizer& tokenizer,
                                          int64_t samples);
/// Validation data, from data.validation or the split; null when there is none.
std::unique_ptr<Sampler> validation_sampler(const Config& config, const Tokenizer& tokenizer,
                                            int64_t samples);

}  // namespace moetrain
