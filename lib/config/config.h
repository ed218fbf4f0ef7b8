// The whole configuration of a run, typed; every other room reads these structs and nothing else.
#pragma once

#include <map>
#include <string>

#include "config/model.h"
#include "config/parallel.h"
#include "config/running.h"
#include "config/training.h"
#include "config/value.h"

namespace moetrain {

/// Section by section as in the YAML file. Member initialisers are the defaults.
struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  ParallelConfig parallel;
  ComputeConfig compute;
  OptimizerConfig optimizer;
  RouterConfig router;
  TrainConfig train;
  CheckpointConfig checkpoint;
  LogConfig log;
  DebugConfig debug;

  /// The file it was loaded from; empty when built in code.
  std::string file;
  /// Dotted path (`parallel.tensor`, `data.train.0.weight`) -> origin; what is missing has its
  /// default.
  std::map<std::string, Origin> origins;

  /// For messages: where `path`, or the nearest enclosing key, was set; else the file.
  std::string where(const std::string& path) const;

  /// Micro-batches of one optimizer step at the full global batch (after resolve).
  int64_t micro_batches() const {
    return train.global_batch_size / (train.micro_batch_size * *parallel.data);
  }
};

}  // namespace moetrain
