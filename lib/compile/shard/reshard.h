// Redistribution: the least-cost sequence of collectives that turns one layout of a tensor into another.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compile/shard/layout.h"

namespace moetrain {

/// Link speeds as the planner sees them: latency in seconds, bandwidth in bytes per second per rank.
struct LinkModel {
  double inter_latency = 10e-6, inter_bandwidth = 25e9;
  double intra_latency = 3e-6, intra_bandwidth = 100e9;
  double memory_bandwidth = 1e12;
  double fp32_flops = 75e12, bf16_flops = 300e12;  ///< matrix products of one rank, FLOP/s
  int ranks_per_node = 8;
};

/// One step of a redistribution; every step changes `before` into `after`.
struct ReshardStep {
  enum class Kind {
    kSlice,          ///< keep own block of dim along axes (no communication)
    kKeepOnFirst,    ///< copy -> partial sum: rank 0 along axes keeps the value, others zero
    kAllGather,      ///< undo the split of `dim` along axes
    kAllToAll,       ///< move axes from `dim` to `to_dim`
    kAllReduce,      ///< finish the pending reduction over axes
    kReduceScatter,  ///< finish the pending sum over axes and split `dim` by them
    kDirect,         ///< one round of messages between any two layouts of equal partial state
  };
  Kind kind;
  std::vector<Axis> axes;  ///< major first; neighbours on one dim may be merged into one step
  int dim = -1, to_dim = -1;
  Layout before, after;
  double seconds = 0;       ///< predicted
  int64_t bytes = 0;        ///< received per rank (the largest over ranks)
};

struct ReshardPlan {
  std::vector<ReshardStep> steps;
  double seconds = 0;
  int64_t bytes = 0;
};

/// Plans redistributions on one mesh and remembers them. Plans depend on nothing but the arguments,
/// so every rank finds the same one. One planner per compilation; not thread-safe.
class ReshardPlanner {
 public:
  ReshardPlanner(const Mesh& mesh, const LinkModel& links);
  ~ReshardPlanner();

  /// Cheapest plan by Dijkstra over layouts (moves of ReshardStep::Kind). `shape` is global; layouts
  /// are normalised and fit it. States whose local bytes exceed `memory_factor` x max(source, target)
  /// are visited only if there is no other way. Axes that keep their place in both layouts, and axes
  /// used by neither, are left alone. The reference is valid as long as the planner.
  const ReshardPlan& plan(const Shape& shape, DType dtype, const Layout& from, const Layout& to,
                          double memory_factor = 4);
  const Mesh& mesh() const { return mesh_; }
  const LinkModel& links() const { return links_; }

 private:
  struct Cache;
  Mesh mesh_;
  LinkModel links_;
  std::unique_ptr<Cache> cache_;
};

/// One plan without a planner's memory.
ReshardPlan plan_reshard(const Mesh& mesh, const LinkModel& links, const Shape& shape, DType dtype,
                         const Layout& from, const Layout& to, double memory_factor = 4);

/// "AllGather(1,mp)" style text of one step / plan.
std::string to_string(const Mesh& mesh, const ReshardPlan& plan);

/// Seconds and received bytes of one collective over `axes` with `local_bytes` before the step.
struct CollectiveCost {
  double seconds = 0;
  int64_t bytes = 0;
};
CollectiveCost collective_cost(const Mesh& mesh, const LinkModel& links, ReshardStep::Kind kind,
                               const std::vector<Axis>& axes, int64_t local_bytes);

/// How a group lies on the nodes: `nodes` nodes with `per_node` members each.
struct GroupShape {
  int ranks = 1, nodes = 1, per_node = 1;
};
GroupShape group_shape(const Mesh& mesh, const LinkModel& links, const std::vector<Axis>& axes);
/// The same cost from the group's shape: the cheaper of one ring over the slowest link and the
/// two-level form (inside the nodes, then between them).
CollectiveCost collective_cost(const LinkModel& links, ReshardStep::Kind kind,
                               const GroupShape& group, int64_t local_bytes);

}  // namespace moetrain
