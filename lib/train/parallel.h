// From the `parallel` section of a configuration to the compiler's mesh and layout rows.
#pragma once

#include <vector>

#include "base/mesh.h"
#include "compile/shard/propagate.h"
#include "config/config.h"

namespace moetrain {

/// The mesh of the ranks of one pipeline stage. `config` is resolved. Throws UserError with the formula
/// when the axes have no common refinement.
Mesh config_mesh(const Config& config);
/// Rows of every strategy that is on for `graph` (or, with `parallel.layouts: auto`, of the cheapest
/// choice over these links), and the user's.
std::vector<LayoutRow> config_rows(const Config& config, const Graph& graph, const LinkModel& links);

}  // namespace moetrain
