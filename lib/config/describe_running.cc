// Rows of sections `run`, `data`, `compute`, `checkpoint`, `log` and `debug`, and the list of
// sections.
#include "config/row.h"

namespace moetrain {

Fields describe(RunConfig& c) {
  return {
      row("name", &c.name, "shown in logs"),
      row("output_dir", &c.output_dir,
          "folder for metrics, checkpoints and logs; relative to the working directory"),
      row("seed", &c.seed, "of initial weights, and of sampling unless data.seed is given")
          .at_least(0),
      row("time_limit", &c.time_limit,
          "save and stop with exit code 75 after so long (like 11h30m); null: no limit")
          .unit("seconds")
          .above(0),
      row("hang_timeout", &c.hang_timeout,
          "end the job when no rank makes progress for so long; 0: never")
          .unit("seconds")
          .at_least(0),
  };
}

Fields describe(DataSource& c) {
  return {
      row("prefix", &c.prefix,
          "path of PREFIX.bin and PREFIX.idx; relative to the working directory")
          .required(),
      row("weight", &c.weight, "share in the blend; shares need not add up to 1").above(0),
  };
}

Fields describe(DataConfig& c) {
  return {
      row("train", records(&c.train), "training sets, blended by weight"),
      row("validation", records(&c.validation),
          "validation sets; empty: the validation share of split"),
      row("split", &c.split,
          "shares of each training set used for training, validation, test: 99,1,0")
          .at_least(0),
      row("sequence_length", &c.sequence_length, "positions of one sample")
          .unit("tokens")
          .at_least(1)
          .at_most(1 << 30)
          .required(),
      row("tokenizer", &c.tokenizer,
          "bytes, or the path of a tokenizer.json; relative to the working directory"),
      row("document_mask", &c.document_mask, "positions see only their own document"),
      row("eod_mask_loss", &c.eod_mask_loss,
          "positions whose input is the end of a document do not count in the loss"),
      row("seed", &c.seed, "of the sample order; auto: run.seed").at_least(0),
  };
}

Fields describe(FusionConfig& c) {
  return {
      row("accumulate", &c.accumulate, "weight-gradient products add into the gradient sums"),
      row("projections", &c.projections,
          "products of one input become one, their input and weight gradients too"),
      row("swiglu", &c.swiglu, "the activation is computed by the products around it"),
      row("gather", &c.gather, "experts read token rows where they stand"),
      row("norm_residual", &c.norm_residual, "norms take over the residual sums next to them"),
      row("rope_split", &c.rope_split,
          "rotary embedding takes over the split, concatenation, casts and copies around it"),
      row("adamw_copy", &c.adamw_copy, "AdamW writes the bf16 copy of a weight"),
      row("side_by_side", &c.side_by_side,
          "small independent operators run on different cores at once"),
  };
}

Fields describe(ComputeConfig& c) {
  return {
      row("backend", choice(&c.backend, kBackendNames), "device that computes"),
      row("precision", choice(&c.precision, kPrecisionNames),
          "dtype of matrix products; master weights are always fp32"),
      row("recompute", choice(&c.recompute, kRecomputeNames),
          "activations computed again in backward: none, selective (norms, activations, "
          "up-projections), full (whole layers)"),
      row("fusion", &c.fusion, "merge neighbouring operators into one kernel"),
      row("fusion_passes", group(&c.fusion_passes), "the passes of fusion one by one"),
      row("pad_value_heads", &c.pad_value_heads,
          "pad values with zeros to the width of keys before attention, as kernels with one head "
          "width need; only for comparison"),
      row("packed_weights", &c.packed_weights,
          "keep copies of weights in the order products read them, packed once per update, where "
          "more "
          "than 4 micro-batches of few rows share an update; costs the copies' memory"),
      row("threads", &c.threads, "compute threads per rank; auto: the cores a rank may use")
          .at_least(1)
          .at_most(1024),
      row("machine", &c.machine,
          "file with speeds and links for the planner, written by bench; relative to this file"),
      row("memory_limit", &c.memory_limit,
          "memory of one rank; a plan that needs more is refused; null: no limit")
          .unit("bytes")
          .at_least(1),
      row("ragged_headroom", &c.ragged_headroom,
          "room for unbalanced routing, as a multiple of the balanced size")
          .at_least(1),
  };
}

Fields describe(CheckpointConfig& c) {
  return {
      row("interval", &c.interval, "steps between checkpoints; 0: only at the end")
          .unit("steps")
          .at_least(0),
      row("keep", &c.keep, "newest checkpoints kept; 0: all").at_least(0),
      row("resume", &c.resume,
          "auto: the published checkpoint of output_dir if there is one; none; or the path of one"),
  };
}

Fields describe(LogConfig& c) {
  return {
      row("interval", &c.interval, "steps between progress lines in a batch job")
          .unit("steps")
          .at_least(1),
      row("tensorboard", &c.tensorboard, "write TensorBoard event files"),
      row("metrics", &c.metrics, "write metrics.jsonl"),
      row("level", choice(&c.level, kLogLevelNames), "least severe messages shown"),
  };
}

Fields describe(DumpConfig& c) {
  return {
      row("steps", &c.steps, "steps (1 is the first) whose activations and gradients are written")
          .unit("steps")
          .at_least(1),
      row("dir", &c.dir, "where to; inside run.output_dir unless absolute"),
  };
}

Fields describe(DebugConfig& c) {
  return {
      row("dump", group(&c.dump), "named activations and gradients as safetensors"),
      row("trace_steps", &c.trace_steps, "steps whose time line is written to trace.json")
          .unit("steps")
          .at_least(1),
      row("inject_nonfinite_steps", &c.inject_nonfinite_steps,
          "steps at which rank 0 puts an infinity into a gradient, to rehearse the fault")
          .unit("steps")
          .at_least(1),
  };
}

Fields describe(Config& c) {
  return {
      row("run", group(&c.run), "name, output and seed"),
      row("model", group(&c.model), "architecture, under the names of DeepSeek-V3's config.json"),
      row("data", group(&c.data), "token files and how samples are cut from them"),
      row("parallel", group(&c.parallel), "how ranks share the work"),
      row("compute", group(&c.compute), "device, precision, memory"),
      row("optimizer", group(&c.optimizer), "update rule and learning rate"),
      row("router", group(&c.router), "load balance of experts"),
      row("train", group(&c.train), "length, batch and validation"),
      row("checkpoint", group(&c.checkpoint), "saving and resuming"),
      row("log", group(&c.log), "what is reported"),
      row("debug", group(&c.debug), "dumps, traces, rehearsed faults"),
  };
}

}  // namespace moetrain
