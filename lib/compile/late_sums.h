// Sums of scalars are finished once: copies become addends for nothing, so that one reduction serves all.
#pragma once

#include "compile/shard/propagate.h"

namespace moetrain {

/// Propagation never turns a copy into a pending sum. For a sum of many scalars (the gradient norm: one
/// per parameter, each partial over other axes) that is wrong: every term would be reduced by itself. Here
/// each sum of scalars takes all its terms as addends over the union of their partial axes (a copy is
/// kept on the first rank, zero elsewhere), and only its reader finishes it. Returns the number of sums
/// changed.
int finish_scalar_sums_late(const Graph& graph, ShardingResult& sharding);

}  // namespace moetrain
