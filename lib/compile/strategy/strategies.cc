// Collects the rows of all strategies and of the user.
#include "compile/strategy/strategies.h"

namespace moetrain {

Rows strategy_rows(const ParallelOptions& options, const Graph& graph) {
  Rows rows = options.user_rows;
  data_parallel(options, graph, rows);
  context_parallel(options, graph, rows);
  tensor_parallel(options, graph, rows);
  sequence_parallel(options, graph, rows);
  expert_parallel(options, graph, rows);
  tp_extend_ep(options, graph, rows);
  zero_redundancy(options, graph, rows);
  return rows;
}

}  // namespace moetrain
