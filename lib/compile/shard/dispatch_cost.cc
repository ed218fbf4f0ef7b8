// Closed forms of the volumes and times of token transports.
#include "compile/shard/dispatch_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace moetrain {

const char* name_of(Transport transport) {
  switch (transport) {
    case Transport::kAllToAll:
      return "alltoall";
    case Transport::kAllToAllOnce:
      return "alltoall_once";
    case Transport::kAllGather:
      return "allgather";
    case Transport::kDedup:
      return "dedup";
  }
  MT_CHECK(false, "a transport without a name");
  return "";
}

std::optional<Transport> transport_named(const std::string& name) {
  for (Transport t : kTransports) {
    if (name == name_of(t)) return t;
  }
  return std::nullopt;
}

namespace {

/// Logarithm of n over k; minus infinity where there is no way.
double log_ways(int64_t n, int64_t k) {
  if (k < 0 || k > n) return -std::numeric_limits<double>::infinity();
  const auto log_factorial = [](int64_t m) { return std::lgamma(static_cast<double>(m) + 1); };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

/// None of k different ones of `all` falls on `some`: C(all - some, k) / C(all, k).
double none_of(int64_t all, int64_t some, int64_t k) {
  double none = 1;
  for (int64_t i = 0; i < k; ++i) {
    none *= std::max(0.0, static_cast<double>(all - some - i)) / static_cast<double>(all - i);
  }
  return none;
}

}  // namespace

double hit_probability(const DispatchShape& shape, int64_t some) {
  const int64_t size = shape.experts / shape.groups, eligible = size * shape.top_groups;
  if (shape.top_groups >= shape.groups) return 1 - none_of(shape.experts, some, shape.top_k);
  // They fill `whole` groups and a part of one more; by how many of those groups are kept.
  const int64_t whole = some / size, rest = some % size, partial = rest > 0;
  double none = 0;
  for (int64_t kept = 0; kept <= whole; ++kept) {
    for (int64_t part = 0; part <= partial; ++part) {
      const double log_share = log_ways(whole, kept) +
                               log_ways(shape.groups - whole - partial,
                                        shape.top_groups - kept - part) -
                               log_ways(shape.groups, shape.top_groups);
      none += std::exp(log_share) * none_of(eligible, kept * size + part * rest, shape.top_k);
    }
  }
  return 1 - none;
}

double expected_nodes(const DispatchShape& shape) {
  const double nodes = static_cast<double>(shape.nodes) *
                       hit_probability(shape, shape.per_node * shape.local_experts);
  return shape.node_limit > 0 ? std::min(nodes, static_cast<double>(shape.node_limit)) : nodes;
}

RowVolume row_volume(Transport transport, const DispatchShape& shape) {
  const double n = static_cast<double>(shape.nodes), r = static_cast<double>(shape.per_node);
  const double ranks = n * r, k = static_cast<double>(shape.top_k);
  // Of a token's k choices, those on the group's ranks (all, unless tokens are copied over expert
  // axes).
  const double reached =
      k * ranks * static_cast<double>(shape.local_experts) / static_cast<double>(shape.experts);
  const double within = reached * (r - 1) / r;
  switch (transport) {
    case Transport::kAllToAll:
      return {reached * (n - 1) / n, reached * (r - 1) / ranks};
    case Transport::kAllToAllOnce: {
      const double hit = hit_probability(shape, shape.local_experts);
      return {hit * (ranks - r), hit * (r - 1)};
    }
    case Transport::kAllGather:
      return {n - 1, within};
    case Transport::kDedup:
      return {expected_nodes(shape) * (n - 1) / n, within};
  }
  return {};
}

double transfer_seconds(const RowVolume& volume, const DispatchShape& shape,
                        const LinkModel& links) {
  const double bytes = static_cast<double>(shape.tokens * shape.row_bytes);
  return volume.inter * bytes / links.inter_bandwidth +
         volume.intra * bytes / links.intra_bandwidth;
}

double dispatch_seconds(Transport transport, const DispatchShape& shape, const LinkModel& links) {
  const double far_ranks = static_cast<double>(shape.ranks() - shape.per_node);
  const double far_nodes = static_cast<double>(shape.nodes - 1);
  const double near = static_cast<double>(shape.per_node - 1) * links.intra_latency;
  const bool gathers = transport == Transport::kAllGather;
  const bool straight = transport == Transport::kAllToAll || transport == Transport::kAllToAllOnce;
  RowVolume volume = row_volume(transport, shape);
  // Expert ids and weights travel beside rows that are expanded where they arrive.
  const double routing = transport == Transport::kAllToAll
                             ? 0
                             : volume.inter * static_cast<double>(shape.tokens * shape.top_k * 8) /
                                   links.inter_bandwidth;
  if (!gathers) volume.inter *= kRaggedSkew;
  const double latency = (straight ? far_ranks : far_nodes) * links.inter_latency + near;
  // Counts (or the gathered routing) go ahead of the rows, once.
  return transfer_seconds(volume, shape, links) + routing + 2 * latency;
}

TransportChoice choose_transport(const DispatchShape& shape, const LinkModel& links) {
  TransportChoice choice;
  for (Transport t : kTransports) {
    const size_t at = static_cast<size_t>(t);
    choice.seconds[at] = dispatch_seconds(t, shape, links);
    if (shape.nodes > 1 &&
        choice.seconds[at] < choice.seconds[static_cast<size_t>(choice.transport)]) {
      choice.transport = t;
    }
  }
  return choice;
}

}  // namespace moetrain
