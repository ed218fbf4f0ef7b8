// Threads of ranks against cores of nodes: the share of each, and what a launcher's binding took away.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "runtime/comm/comm.h"

namespace moetrain {

/// Threads this rank computes with: compute.threads, or its share of the cores it may use. Local.
int64_t rank_threads(const Config& config, const Fabric& fabric);

/// One rank as the check sees it.
struct RankCores {
  int node = 0;
  int64_t threads = 1;
  int64_t online = 1;              ///< cores of its node
  std::vector<int> allowed;        ///< cores it may run on
  bool operator==(const RankCores&) const = default;
};

/// Says what slows the ranks down: more threads than cores on a node, or a binding that keeps threads on
/// fewer cores than they are. "" when all is well. Pure.
std::string core_advice(const std::vector<RankCores>& ranks);

/// The advice for this job. Collective; the same on every rank.
std::string check_cores(const Config& config, Fabric& fabric);

}  // namespace moetrain
