// Zeros behind the entries of the last dim, and their removal.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// y[.., c + by] = x[.., c] followed by `by` zeros. attrs: by (> 0). Gradient: crop.
extern const OpDef kPad;
/// y[.., c - by] = x[.., c] without its last `by` entries. attrs: by (> 0). Gradient: pad.
extern const OpDef kCrop;

Value pad(Graph& g, Value x, int64_t by, const std::string& name);
Value crop(Graph& g, Value x, int64_t by, const std::string& name);

}  // namespace moetrain::ops
