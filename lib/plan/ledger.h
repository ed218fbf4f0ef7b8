// The byte ledger: what every collective of a plan sends over each class of link, counted before it
// runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace moetrain {

/// Payload bytes and messages of one rank to other ranks, per link class. A block that k ranks of a
/// node read from shared memory counts k times (as Fabric::traffic does).
struct LinkTraffic {
  int64_t inter_bytes = 0, intra_bytes = 0;
  int64_t inter_messages = 0, intra_messages = 0;
  LinkTraffic& operator+=(const LinkTraffic& other);
  bool operator==(const LinkTraffic&) const = default;
};

/// Node of a world rank.
using NodeOf = std::function<int(int)>;
/// Nodes of `ranks_per_node` consecutive ranks; 0: one node.
NodeOf consecutive_nodes(int ranks_per_node);

/// What `rank` sends when member i of `ranks` gets send_bytes[i] from it.
LinkTraffic exchange_traffic(const std::vector<int>& ranks, int rank, const NodeOf& node_of,
                             const std::vector<int64_t>& send_bytes);
/// What the plan's rank sends for one collective, by the host fabrics' algorithms
/// (runtime/comm/group.h): exact where sizes are static, at expected and evenly spread rows where
/// they are not.
LinkTraffic collective_traffic(const Plan& plan, const Collective& collective,
                               const NodeOf& node_of);

struct LedgerLine {
  std::string segment, name, op, group;
  bool ragged = false;  ///< a size known at run time only
  LinkTraffic sent;
};
/// One line per collective of the segments that are not merged from others, in the order of the tape.
std::vector<LedgerLine> ledger(const Plan& plan, const NodeOf& node_of);
LinkTraffic total(const std::vector<LedgerLine>& lines);

}  // namespace moetrain
