// Tries layouts for a number of ranks by compiling each, and ranks them by predicted step time.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "train/machine.h"

namespace moetrain {

/// A table of the tensor, expert, context and zero settings that the config's rules allow on
/// `world` ranks
/// (`config` unresolved), fastest first; those that do not fit the machine's memory stand last. At
/// most `most` candidates are compiled; the table says how many were left out.
std::string search_plans(const Config& config, int64_t world, const Machine& machine,
                         int64_t most = 64);

}  // namespace moetrain
