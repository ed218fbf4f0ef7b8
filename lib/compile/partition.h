// Partition: from the global graph and its layouts to one rank's graph, redistributions made explicit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/stages.h"
#include "compile/shard/dispatch_cost.h"
#include "compile/shard/propagate.h"
#include "graph/graph.h"

namespace moetrain {

/// A state or input of the local graph, with what it is a slice of.
struct LocalPort {
  std::string name;
  Value value;
  Layout layout;
  Type global;
};

/// One redistribution that partition inserted.
struct ReshardNote {
  std::string producer, consumer;
  Phase phase = Phase::kForward;
  Shape shape;
  DType dtype = DType::kF32;
  Layout from, to;
  ReshardPlan plan;
};

/// The transport of one dispatch and what it was chosen from.
struct DispatchNote {
  std::string name;
  bool chosen = false;  ///< by the cheapest price; otherwise as the request said
  DispatchShape shape;
  TransportChoice choice;
};
std::string to_string(const DispatchNote& note);

struct LocalGraph {
  Graph graph;  ///< outputs are replicated: every rank holds them whole
  std::vector<LocalPort> states, inputs;
  std::vector<ReshardNote> reshards;
  std::vector<DispatchNote> dispatches;
};

/// Makes `rank`'s graph. Every operand arrives in the layout its node demands: a missing one is made by
/// the cheapest redistribution, once per phase. Ops whose `local` factors are split are expanded
/// (localize*.cc). With several pipeline stages only nodes of `rank`'s stage are there; values that cross
/// between stages are sent and received in their produced layout. Nothing else inserts communication. Same
/// on all ranks of a stage but for block indices. Token rows travel by `dispatch`, or by what the links make
/// cheapest (decided for each dispatch by itself).
LocalGraph partition(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
                     const LinkModel& links, int rank,
                     std::optional<Transport> dispatch = std::nullopt,
                     const Stages& stages = {});

}  // namespace moetrain
