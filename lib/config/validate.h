// Fills in `auto` values and checks every rule of sizes and topology that needs no graph.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace moetrain {

/// Replaces every `auto` that follows from the rank count: parallel.data, sequence_parallel,
/// tp_extend_ep, ranks_per_node, model.num_key_value_heads, data.seed. `ranks_per_node` is what the
/// launcher or machine file says (0: unknown, then all ranks share one node). Never throws for user
/// faults: validate() finds them. parallel.dispatch, stage_layout, compute.threads and
/// schedule.decay_steps stay with the rooms that know more.
void resolve(Config& config, int64_t world_size, int64_t ranks_per_node = 0);

/// The smallest world size the file describes: `data` as given, else the fewest ranks that `expert`
/// allows. For commands that run without a launcher (`config check`, `plan` without --world-size).
int64_t smallest_world_size(const Config& config);

/// Every broken rule, with the formula, the numbers and the nearest valid values. Needs resolve()
/// first.
std::vector<Diagnostic> check(const Config& config, int64_t world_size);

/// check(), thrown as one UserError if anything is wrong. Allocates nothing, touches no file or
/// device.
void validate(const Config& config, int64_t world_size);

/// What only a training run needs: data to train on and a length (train.steps or train.tokens).
void validate_training(const Config& config);

}  // namespace moetrain
