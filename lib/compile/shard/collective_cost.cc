// What one collective costs on groups that span nodes: latency and bandwidth per link class.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "compile/shard/reshard.h"

namespace moetrain {
namespace {

using Kind = ReshardStep::Kind;

struct Link {
  double latency, bandwidth;
};

/// One ring (or pairwise exchange) of m ranks over one kind of link; s = local bytes before.
double flat(Kind kind, double m, double s, const Link& link) {
  switch (kind) {
    case Kind::kAllGather: return (m - 1) * (link.latency + s / link.bandwidth);
    case Kind::kReduceScatter:
    case Kind::kAllToAll: return (m - 1) * link.latency + (m - 1) / m * s / link.bandwidth;
    case Kind::kAllReduce:
      return 2 * ((m - 1) * link.latency + (m - 1) / m * s / link.bandwidth);
    default: return 0;
  }
}

double two_level(Kind kind, double q, double r, double s, const Link& inter, const Link& intra) {
  switch (kind) {
    case Kind::kAllGather: return flat(kind, q, s, inter) + flat(kind, r, q * s, intra);
    case Kind::kReduceScatter:
    case Kind::kAllReduce: return flat(kind, r, s, intra) + flat(kind, q, s / r, inter);
    case Kind::kAllToAll: return flat(kind, q, s, inter) + flat(kind, r, s, intra);
    default: return 0;
  }
}

}  // namespace

GroupShape group_shape(const Mesh& mesh, const LinkModel& links, const std::vector<Axis>& axes) {
  GroupShape shape;
  shape.ranks = mesh.size(axes);
  std::set<int> nodes;
  for (int rank : mesh.group(mesh.first_rank, axes)) {
    nodes.insert(rank / std::max(1, links.ranks_per_node));
  }
  shape.nodes = static_cast<int>(nodes.size());
  // A group that lies unevenly is priced as if every member were alone on its node.
  if (shape.ranks % shape.nodes != 0) shape.nodes = shape.ranks;
  shape.per_node = shape.ranks / shape.nodes;
  return shape;
}

CollectiveCost collective_cost(const LinkModel& links, ReshardStep::Kind kind,
                               const GroupShape& group, int64_t local_bytes) {
  const double m = group.ranks, q = group.nodes, r = group.per_node;
  const double s = static_cast<double>(local_bytes);
  const Link inter{links.inter_latency, links.inter_bandwidth};
  const Link intra{links.intra_latency, links.intra_bandwidth};
  CollectiveCost cost;
  switch (kind) {
    case Kind::kSlice:
    case Kind::kKeepOnFirst:
      cost.seconds = s / m / links.memory_bandwidth;
      return cost;
    case Kind::kAllGather: cost.bytes = (group.ranks - 1) * local_bytes; break;
    case Kind::kReduceScatter:
    case Kind::kAllToAll: cost.bytes = local_bytes - local_bytes / group.ranks; break;
    case Kind::kAllReduce: cost.bytes = 2 * (local_bytes - local_bytes / group.ranks); break;
    case Kind::kDirect: MT_CHECK(false, "a direct exchange is priced by its pieces");
  }
  if (group.ranks == 1) return {};
  if (group.nodes == 1) {
    cost.seconds = flat(kind, m, s, intra);
  } else if (group.per_node == 1) {
    cost.seconds = flat(kind, m, s, inter);
  } else {
    double one_level = flat(kind, m, s, inter);
    if (kind == Kind::kAllToAll) {  // pairwise messages use both kinds of link at once
      one_level = std::max((m - r) * inter.latency + (m - r) / m * s / inter.bandwidth,
                           (r - 1) * intra.latency + (r - 1) / m * s / intra.bandwidth);
    }
    cost.seconds = std::min(one_level, two_level(kind, q, r, s, inter, intra));
  }
  return cost;
}

CollectiveCost collective_cost(const Mesh& mesh, const LinkModel& links, ReshardStep::Kind kind,
                               const std::vector<Axis>& axes, int64_t local_bytes) {
  return collective_cost(links, kind, group_shape(mesh, links, axes), local_bytes);
}

}  // namespace moetrain
