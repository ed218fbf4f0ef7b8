// Runs a small sharded graph on ranks that are threads, through the whole compiler and runtime.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/partition.h"
#include "compile/shard/propagate.h"
#include "graph/interpret.h"

namespace moetrain {

/// Names of inputs and states, and of outputs, with whole tensors, row-major.
using Tensors = std::map<std::string, std::vector<double>>;

struct GraphRun {
  std::vector<Tensors> outputs;            ///< by rank
  std::vector<std::string> collectives;    ///< of rank 0, "op group"
  std::vector<ReshardNote> reshards;       ///< of rank 0
};

/// Partitions, lowers and executes `graph` on as many threads as the mesh has ranks. Leaves are cut by
/// their layouts (pending sums: the first rank holds the value). Float32 and reference loops throughout.
GraphRun run_graph(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
                   const LinkModel& links, const Tensors& leaves);
/// What one rank would compute, in double.
Tensors expected(const Graph& graph, const Tensors& leaves);
/// Reproducible values between -1 and 1 for all inputs and states.
Tensors leaf_values(const Graph& graph);
/// Every rank's outputs agree with one rank's.
void expect_same(const Tensors& wanted, const GraphRun& run, double tolerance = 1e-5);

}  // namespace moetrain
