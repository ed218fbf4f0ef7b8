// AdamW writes the compute copy of its parameter in the same pass.
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// assign(compute copy, updated master) merges into the adamw that made the master, where the master is
/// whole on this rank (with ZeRO a gather stands between them and nothing is merged).
LocalGraph fuse_adamw_copy(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
