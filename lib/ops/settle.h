// Settle: the identity that asks for a finished sum.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// y = x, in place. Not linear: a pending sum must be finished before it, in whatever layout the readers
/// of y agree on. The update reads every gradient through one, so that norm and optimizer share it.
extern const OpDef kSettle;
Value settle(Graph& g, Value x, const std::string& name);

}  // namespace moetrain::ops
