// What token transports cost: rows per link class and seconds, in closed form, for choosing one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "compile/shard/reshard.h"

namespace moetrain {

/// How token rows reach their experts (compile/transport.h: how it is done).
enum class Transport {
  kAllToAll,      ///< a row per chosen expert, straight to the expert's rank
  kAllToAllOnce,  ///< a row once per rank that has one of its experts; expanded there
  kAllGather,  ///< all rows to every node (ranks of equal place), then within the node as kAllToAll
  kDedup,      ///< a row once per node that has one of its experts, then within the node
};
inline constexpr std::array<Transport, 4> kTransports = {
    Transport::kAllToAll, Transport::kAllToAllOnce, Transport::kAllGather, Transport::kDedup};
const char* name_of(Transport transport);
std::optional<Transport> transport_named(const std::string& name);

/// One dispatch: an expert group of `nodes` x `per_node` ranks; each rank sends `tokens` tokens
/// with `top_k` of `experts` experts. `local_experts` live on each rank (fewer than experts / ranks
/// where tokens are copied over some expert axes). `node_limit`: no token goes to more nodes than
/// that (0: no limit). A token chooses within `top_groups` of `groups` runs of experts; within those
/// limits routing is taken as uniform.
struct DispatchShape {
  int64_t nodes = 1, per_node = 1;
  int64_t tokens = 0, top_k = 1, experts = 1, local_experts = 1;
  int64_t row_bytes = 0;
  int64_t node_limit = 0;
  int64_t groups = 1, top_groups = 1;
  int64_t ranks() const { return nodes * per_node; }
};

/// Probability that a token has at least one of `some` given experts (that follow one another and start
/// with a group).
double hit_probability(const DispatchShape& shape, int64_t some);
/// Nodes with at least one of a token's experts, on average; within the node limit.
double expected_nodes(const DispatchShape& shape);

/// Rows that cross a link per token, in one direction of one dispatch (or combine).
struct RowVolume {
  double inter = 0, intra = 0;
};
RowVolume row_volume(Transport transport, const DispatchShape& shape);

/// Seconds of one transfer of that volume: the slow links first, then the node's.
double transfer_seconds(const RowVolume& volume, const DispatchShape& shape,
                        const LinkModel& links);
/// Seconds of one dispatch: rows, routing that travels beside them, counts, and latencies. Ragged
/// transfers over the slow links are priced for their fullest rank (kRaggedSkew).
double dispatch_seconds(Transport transport, const DispatchShape& shape, const LinkModel& links);
/// The fullest rank of a ragged exchange over the average one: an allowance, not a measurement.
/// (The gather moves the same rows whatever the routing.)
inline constexpr double kRaggedSkew = 1.25;

struct TransportChoice {
  Transport transport = Transport::kAllToAll;
  std::array<double, 4> seconds{};  ///< of every transport, in the order of kTransports
};
/// The cheapest; among equals the first of kTransports. On one node always kAllToAll.
TransportChoice choose_transport(const DispatchShape& shape, const LinkModel& links);

}  // namespace moetrain
