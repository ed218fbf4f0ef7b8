// Several independent ops as one: an op that only compile/fuse makes, on one rank's graph.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// Operands of all parts in a row -> results of all parts in a row. attr `body`: the parts; none reads or
/// overwrites what another one writes, so a device may run them in any order, or at once.
extern const OpDef kSideBySide;

}  // namespace moetrain::ops
