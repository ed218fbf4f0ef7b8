// Casts of one value to one dtype happen once.
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// Of several casts of one value to one dtype in one phase and stage only the first stays. (Across phases
/// a cast is cheaper to repeat than to keep.) Gradients meet this often: every branch of a residual sum
/// rounds the same incoming gradient.
LocalGraph fuse_casts(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
