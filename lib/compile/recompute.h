// Recomputation: activations that are cheap to make again are not kept from forward to backward.
#pragma once

#include "compile/shard/propagate.h"
#include "graph/graph.h"

namespace moetrain {

enum class RecomputeMode {
  kNone,
  /// Norms, casts, SwiGLU, rotary embedding and the latent up-projections (arXiv:2412.19437 3.2.3).
  kSelective,
  /// Everything inside a layer but its input, the routing and the token rows that travelled.
  kFull,
};

struct Recomputed {
  Graph graph;
  ShardingResult sharding;
  int cloned = 0;  ///< nodes that run again
};

/// Clones the chosen forward nodes just before the first backward node of their layer that reads them;
/// the clones inherit layouts, so a collective inside a chain runs again with it. Routing, dispatch and
/// combine are never cloned: a token is routed once, and loads are counted once. The numbers do not
/// change: the same kernels run on the same operands.
Recomputed recompute(const Graph& graph, const ShardingResult& sharding, RecomputeMode mode);

}  // namespace moetrain
