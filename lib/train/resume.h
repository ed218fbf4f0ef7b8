// Restoring a run from its newest sound checkpoint.
#pragma once

#include <string>

#include "train/session.h"

namespace moetrain {

/// Restores every state of `session` from the checkpoint folder `from`, on all ranks (collective).
/// With `root` (the run's `checkpoints/`) a checkpoint whose bytes turn out to be damaged, which
/// shows only while they are read, is passed over with a warning for the next older one; without
/// it, and for tensors that this run does not have, AgreedError. Returns the folder that was used.
std::string restore_session(Session& session, Fabric& fabric, std::string from,
                            const std::string& root);

}  // namespace moetrain
