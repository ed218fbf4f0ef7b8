// Small independent ops share one launch (ops/side_by_side.h).
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// Ops too small to keep all cores busy (norms of latents, rotations, updates of gains) that do not need one
/// another become one launch at the place of the first of them; a device runs them on different cores.
/// Nothing moves past a collective, out of its layer, phase or stage, or past somebody who reads what it
/// overwrites, and parts wait for the same transfer or for none. (Elsewhere called horizontal or parallel fusion.)
LocalGraph fuse_side_by_side(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
