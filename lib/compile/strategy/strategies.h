// The strategies: each writes rows of annotation; nothing else in the compiler knows their names.
#pragma once

#include <vector>

#include "compile/strategy/parallel_options.h"
#include "graph/graph.h"

namespace moetrain {

using Rows = std::vector<LayoutRow>;

/// All rows of the options for `graph` (names as lib/model/README.md lists them), the user's included.
Rows strategy_rows(const ParallelOptions& options, const Graph& graph);

/// Tokens: inputs [b, s] over dp and cp; token ops keep b over dp.
void data_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// s of every token op over cp. Keys and values are whole in attention (its rule), so they are gathered.
void context_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// Heads, hidden dims and the vocabulary over tp; parameters stored the same way.
void tensor_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// Norms, latents, router and residual stream: s over cp and tp.
void sequence_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// Experts over ep, their hidden dim over tp.
void expert_parallel(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// Experts whole over ep and tp.
void tp_extend_ep(const ParallelOptions& options, const Graph& graph, Rows& rows);
/// Optimizer state (and with zero 3 the parameters) over the ranks that hold copies.
void zero_redundancy(const ParallelOptions& options, const Graph& graph, Rows& rows);

}  // namespace moetrain
