// The gated activation moves into the products before it (ops/projections.h).
#pragma once

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

/// swiglu joins the product that makes gate and up (as fuse_projections leaves it), its gradient the product
/// that makes the gradient of its result.
LocalGraph fuse_swiglu(const LocalGraph& local, FusionReport& report);

}  // namespace moetrain
