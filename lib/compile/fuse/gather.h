// Token rows are read where they stand by the experts' first products (ops/projections.h).
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// A gather_rows that only products of fuse_projections read goes away: they read the tokens through the
/// plan, forward and for the weight gradient, and nobody holds a copy of the rows.
LocalGraph fuse_gather(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
