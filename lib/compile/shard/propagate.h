// Propagation: from a few anchored layouts to one factor assignment for every node of the graph.
#pragma once

#include <string>
#include <vector>

#include "compile/shard/reshard.h"
#include "compile/shard/rule.h"
#include "graph/graph.h"

namespace moetrain {

/// One row of annotation. Strategies and users write rows of the same kind. (The config room has a
/// ShardRow of its own: the user's text. This is what strategy/user.cc makes of it.)
struct LayoutRow {
  enum class Kind {
    kFactors,  ///< give axes to factors of ops whose name matches (forward node; its vjp nodes follow)
    /// Give layouts to operands (`in`) and/or result 0 (`out`) of matching ops: closed identities on
    /// the uses. Decisions and prices see these layouts; the op behind may differ at a price, and
    /// the data then goes straight from producer to demand.
    kUses,
    kState,    ///< layout of states (parameters, optimizer moments) and inputs whose name matches
  };
  Kind kind = Kind::kFactors;
  std::string pattern;                                   ///< `*` globs over node or state names
  std::map<char, std::vector<std::string>> factors;      ///< factor letter -> axis names
  /// Per tensor, per dim, axis names. An empty entry of `in` leaves that operand open; kState rows
  /// have one entry in `out` (all dims empty: whole, whatever the rank).
  std::vector<std::vector<std::vector<std::string>>> in, out;
  std::string origin;                                    ///< "strategy tp", "config.yaml:31:5", ...
  bool locked = true;                                    ///< a user row: never overridden
};

/// The decision for one node and where it came from.
struct NodeSharding {
  FactorAxes factors;
  NodeLayouts layouts;
  std::string origin;   ///< "anchor: strategy tp", "propagated from layers.0.mlp.up", "refined", ...
  bool anchored = false;
};

struct ShardingResult {
  std::vector<NodeSharding> nodes;   ///< indexed like Graph::nodes
  double reshard_seconds = 0;        ///< predicted, summed over edges
  std::vector<std::string> notes;    ///< about user rows: conflicts priced, rows without effect
};

struct PropagateOptions {
  bool refine = true;
  double repeats = 1;  ///< how often forward and backward run per update: what they move counts that often
};

/// Multi-source breadth-first propagation from the anchors, then monotone refinement
/// (README, last section). Deterministic; independent of the order of rows. Throws UserError,
/// naming op, shapes, axes and remedy, only for impossible rows. Every value is then laid out as its
/// producer's NodeLayouts::results says; an edge whose consumer demands something else needs a
/// redistribution (inserted by partition). Ragged values are never redistributed: all ops that touch
/// one agree, or the row is refused.
ShardingResult propagate(const Graph& graph, const Mesh& mesh, const LinkModel& links,
                         const std::vector<LayoutRow>& rows, const PropagateOptions& options = {});

}  // namespace moetrain
