// Rows of sections `optimizer`, `router` and `train`.
#include "config/row.h"

namespace moetrain {

namespace {
constexpr double kMostSequences = 1 << 20;  // of one batch
}  // namespace

Fields describe(RateStage& c) {
  return {
      row("steps", &c.steps, "length of the stage; give this or tokens").unit("steps").at_least(1),
      row("tokens", &c.tokens,
          "length of the stage; give this or steps; the last stage may leave out both")
          .unit("tokens")
          .at_least(1),
      row("curve", choice(&c.curve, kCurveNames),
          "how the rate gets to learning_rate; constant: at once"),
      row("learning_rate", &c.learning_rate, "rate at the end of the stage").at_least(0).required(),
  };
}

Fields describe(RateSchedule& c) {
  return {
      row("kind", choice(&c.kind, kScheduleKindNames),
          "shape of the rate after warm-up; wsd: stable, then a linear decay; stages: the list "
          "below"),
      row("warmup_steps", &c.warmup_steps, "linear rise from 0; the first step already learns")
          .unit("steps")
          .at_least(0),
      row("min_learning_rate", &c.min_learning_rate, "where linear, cosine and wsd end")
          .at_least(0),
      row("decay_steps", &c.decay_steps,
          "linear, cosine: step at which the minimum is reached; auto: the last. wsd: length of "
          "the decay")
          .unit("steps")
          .at_least(1),
      row("stages", records(&c.stages),
          "staged plan for kind: stages; warm-up counts into the first stage"),
  };
}

Fields describe(ChangePoint& c) {
  return {
      row("after_steps", &c.after_steps,
          "steps behind at which the value changes; give this or after_tokens")
          .unit("steps")
          .at_least(1),
      row("after_tokens", &c.after_tokens,
          "tokens behind at which the value changes; give this or after_steps")
          .unit("tokens")
          .at_least(1),
      row("value", &c.value, "the value from there on").at_least(0).required(),
  };
}

Fields describe(OptimizerConfig& c) {
  return {
      row("type", &c.type, "update rule").one_of({"adamw"}),
      row("learning_rate", &c.learning_rate, "peak learning rate").above(0),
      row("betas", &c.betas, "decay of the first and second moment")
          .at_least(0)
          .below(1)
          .of_length(2),
      row("eps", &c.eps, "added to the root of the second moment").above(0),
      row("weight_decay", &c.weight_decay, "decoupled decay of weights with two or more dims")
          .at_least(0),
      row("clip_norm", &c.clip_norm,
          "global gradient norm above which gradients are scaled down; 0: never")
          .at_least(0),
      row("schedule", group(&c.schedule), "learning rate over the steps"),
  };
}

Fields describe(RouterConfig& c) {
  return {
      row("bias_update_speed", &c.bias_update_speed,
          "step of the routing bias per optimizer step towards equal load; 0: the bias stays")
          .at_least(0),
      row("bias_update_schedule", records(&c.bias_update_schedule),
          "later values of bias_update_speed"),
      row("balance_alpha", &c.balance_alpha, "weight of the sequence-wise balance loss; 0: off")
          .at_least(0),
  };
}

Fields describe(BatchRampStage& c) {
  return {
      row("until_tokens", &c.until_tokens, "tokens consumed up to which this batch is used")
          .unit("tokens")
          .at_least(1)
          .required(),
      row("global_batch_size", &c.global_batch_size, "sequences per optimizer step")
          .unit("sequences")
          .at_least(1)
          .at_most(kMostSequences)
          .required(),
  };
}

Fields describe(TrainConfig& c) {
  return {
      row("steps", &c.steps, "optimizer steps of the run; give this or tokens")
          .unit("steps")
          .at_least(1),
      row("tokens", &c.tokens, "training tokens of the run; give this or steps")
          .unit("tokens")
          .at_least(1),
      row("global_batch_size", &c.global_batch_size,
          "sequences per optimizer step, all ranks together")
          .unit("sequences")
          .at_least(1)
          .at_most(kMostSequences)
          .required(),
      row("micro_batch_size", &c.micro_batch_size,
          "sequences a data-parallel rank computes at once")
          .unit("sequences")
          .at_least(1)
          .at_most(kMostSequences),
      row("batch_ramp", records(&c.batch_ramp),
          "smaller global batches at the start, in order of until_tokens"),
      row("mtp_lambda", &c.mtp_lambda, "weight of the multi-token-prediction loss").at_least(0),
      row("mtp_lambda_schedule", records(&c.mtp_lambda_schedule), "later values of mtp_lambda"),
      row("validation_interval", &c.validation_interval, "steps between validations; 0: never")
          .unit("steps")
          .at_least(0),
      row("validation_steps", &c.validation_steps, "global batches per validation")
          .unit("steps")
          .at_least(1),
      row("max_nonfinite_steps", &c.max_nonfinite_steps,
          "steps with a non-finite gradient in a row (each is skipped) after which the run stops "
          "with exit code 3")
          .unit("steps")
          .at_least(1),
  };
}

}  // namespace moetrain
