// What a run says about itself before the first step, and plan.txt.
#pragma once

#include <string>

#include "config/config.h"
#include "train/session.h"

namespace moetrain {

/// Model size, ranks, batch, decay groups, memory of rank 0, compile time: a few lines.
std::string start_report(const Config& config, const Session& session, int world,
                         int64_t total_steps);
/// Rank 0's collectives with bytes, then its whole tape.
std::string plan_report(const Session& session);

}  // namespace moetrain
