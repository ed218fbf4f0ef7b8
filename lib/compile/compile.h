// The compiler on one page: from a global graph and layout rows to one rank's plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compile/partition.h"
#include "compile/recompute.h"
#include "compile/schedule/timetable.h"
#include "compile/shard/propagate.h"
#include "compile/tape.h"
#include "plan/plan.h"

namespace moetrain {

struct CompileRequest {
  Mesh mesh;
  std::vector<LayoutRow> rows;
  LinkModel links;
  int rank = 0;
  int world = 1;
  RecomputeMode recompute = RecomputeMode::kNone;
  bool fusion = true;
  std::vector<std::string> fusion_off;  ///< fusion passes left out (compile/fuse/passes.h)
  Stages stages;                       ///< of the pipeline; `mesh` is that of `rank`'s stage
  PipelineOrder order = PipelineOrder::k1F1B;
  std::vector<int> micro_batches{1};   ///< every count a step can have
  OverlapOptions overlap;             ///< transfers beside computation
  std::optional<Transport> dispatch;  ///< of token rows; none: the cheapest for each dispatch
};

struct PassTime {
  std::string name;
  double seconds = 0;
  size_t nodes = 0;         ///< of the graph after the pass
  int fused = 0;            ///< of a fusion pass: nodes that became part of another
  int64_t bytes_saved = 0;  ///< of a fusion pass: memory traffic that no longer happens
};

struct Compiled {
  ShardingResult sharding;  ///< of the graph given, before recomputation clones nodes
  LocalGraph local;
  Plan plan;
  std::vector<PassTime> passes;
};

/// Runs every pass in order and verifies after each. Pure: the same request gives the same plan on any
/// machine; no device, no tensor. Throws UserError for layouts that cannot be.
Compiled compile(const Graph& graph, const CompileRequest& request);

}  // namespace moetrain
