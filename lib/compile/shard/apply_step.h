// Plays redistribution steps on plain arrays of all ranks at once: the meaning of ReshardStep, for tests.
#pragma once

#include <vector>

#include "compile/shard/reshard.h"

namespace moetrain {

/// Every rank's local array (row-major), indexed by rank - mesh.first_rank.
using RankArrays = std::vector<std::vector<double>>;

/// The local arrays of a global array under `layout`. Pending sums: the rank that is first along the
/// partial axes holds the value, the others zero (pending maxima: the others minus infinity).
RankArrays scatter(const Mesh& mesh, const Layout& layout, const Shape& shape,
                   const std::vector<double>& global);
/// The global array that local arrays stand for; sums over partial axes, checks that copies agree
/// (InternalError if not).
std::vector<double> materialise(const Mesh& mesh, const Layout& layout, const Shape& shape,
                                const RankArrays& local);
/// The effect of one step; `ranks_per_node` decides the holders of a direct exchange.
RankArrays apply_step(const Mesh& mesh, const ReshardStep& step, const Shape& shape,
                      const RankArrays& local, int ranks_per_node);

}  // namespace moetrain
