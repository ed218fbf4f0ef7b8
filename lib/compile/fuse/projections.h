// Products of one input become one, forward and backward (ops/projections.h).
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// Several products of one value (gate and up, q_a and kv_a) become one launch, the sums of their input
/// gradients one product with a longer contraction, and their weight gradients one that packs the value
/// once. Products with a collective between them stay apart, and so do weight gradients of a stage whose backward
/// pass has collectives: they are what transfers are hidden behind.
LocalGraph fuse_projections(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
