// Rotary embedding takes over the split, concatenation, casts and copies around it.
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// Forward: the split of the joint latent, the norm of its first part and the rotation (with its cast) of
/// the second become norm_rope. Backward: norm gradient, rotation, concatenation and casts become
/// norm_rope_grad, which reads the joint latent instead of a copy of its first part. A rope of anything
/// nobody else reads turns in place. Only nodes of one phase and stage are merged.
LocalGraph fuse_rope_split(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
