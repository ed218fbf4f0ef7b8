// How one dispatch moves its rows: two stages, whose presence makes the four token transports.
#pragma once

#include "compile/shard/dispatch_cost.h"
#include "graph/graph.h"

namespace moetrain {

/// A dispatch is two stages. The outer one brings token rows to `outer` ranks ("columns": the own
/// place on every node), the inner one brings a row per chosen expert to `inner` ranks (one node).
///
///   transport      outer stage                       inner stage
///   alltoall       none                              all ranks of the group
///   alltoall_once  a row once per rank               none (expanded on the spot)
///   allgather      all rows to every node            the node
///   dedup          a row once per node               the node
///
/// Combine runs them backwards: weighted rows are summed at the column before they cross back. The
/// gradients of dispatch and combine are a combine and a dispatch over the same plan.
struct DispatchBundle {
  enum class Outer { kNone, kGather, kOnce };
  Outer outer = Outer::kNone;
  int64_t outer_members = 1, inner_members = 1;
  int64_t outer_place = 0, inner_place = 0;  ///< this rank's place in the two groups
  Attrs group, outer_group, inner_group;     ///< who takes part, as collectives name it
  std::vector<int64_t> first_experts;        ///< of all members, in group order
  std::vector<int64_t> inner_experts;        ///< the same of the inner group
  int64_t local_experts = 0, experts = 0, top_k = 0, tokens = 0;

  Value source_idx;  ///< [b, s, K] as routed here
  Value idx,
      weight;      ///< of the tokens at this column; the same as the source's without outer stage
  Value out_plan;  ///< kOnce: which token goes to which column
  Value plan;      ///< column slot -> row, destination-major
  Value counts;    ///< [inner members, local experts] i32 sent, where no outer stage counted
  Value received;  ///< [inner members, local experts] i32
  Value offsets;   ///< what grouped ops read: offsets of expert-major rows
  Value bind;
  /// Places of extents (and of the count tables behind them) in `bind`.
  int64_t outer_sent = -1, outer_received = -1, inner_sent = 0, inner_received = 0;
  /// Largest numbers of rows: to columns, at this column, to experts, at these experts.
  int64_t out_capacity = 0, column_capacity = 0, send_capacity = 0, recv_capacity = 0;

  double hit = 1;  ///< share of (token, column) pairs with a row, at even routing (kOnce)

  int64_t members() const { return outer_members * inner_members; }
};

}  // namespace moetrain
