// RMSNorm takes over the sums next to it: the residual stream is read and written once per norm.
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// Forward: rms_norm of a sum becomes add_rms_norm, with nested sums flattened; a cast of its result
/// becomes a second result. Backward: the sum of a norm's dx with the gradient that passes by becomes
/// rms_norm_grad_add, again with the cast of its result, and takes over the sums and casts its dy comes
/// from; a dx that is only cast is made in that dtype.
/// Only nodes of one phase and stage are merged.
LocalGraph fuse_norm_residual(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
