// The gated activation: silu(gate) * up.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// (gate, up) same shape (ragged allowed) -> silu(gate) * up in gate's dtype, computed in float.
extern const OpDef kSwiglu;
/// (dy, gate, up) -> dgate, dup.
extern const OpDef kSwigluGrad;

Value swiglu(Graph& g, Value gate, Value up, const std::string& name);

}  // namespace moetrain::ops
