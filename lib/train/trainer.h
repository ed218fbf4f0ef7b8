// The training loop: data, steps, metrics, validation, checkpoints, and every way a run can end.
#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "runtime/comm/comm.h"

namespace moetrain {

struct TrainCommand {
  std::string resume;            ///< "auto", "none" or a path; empty: checkpoint.resume of the config
  std::optional<int64_t> steps;  ///< stop (and save) after this step of the run, before its planned end
};

/// Trains as `config` says; collective over all ranks of `fabric`. Resolves and validates the config
/// first. Returns kExitDone, kExitNumbers (too many non-finite steps in a row) or kExitResubmit (signal or
/// time limit, after saving). Throws UserError / AgreedError for what the user can mend.
int train(const Config& config, Fabric& fabric, const TrainCommand& command);

}  // namespace moetrain
