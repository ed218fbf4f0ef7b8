// Times the communicator's verbs, and finds latency and bandwidth of each link class.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/comm.h"

namespace moetrain {

struct BenchCollectivesOptions {
  int repeats = 15;                    ///< of every measurement; medians are shown
  std::vector<int64_t> sizes = {1 << 10, 64 << 10, 1 << 20, 8 << 20};  ///< bytes sent by a rank
};

/// One message costs latency + bytes / bandwidth.
struct LinkFit {
  double latency = 0;    ///< s
  double bandwidth = 0;  ///< bytes per second
};
/// The line through (bytes, seconds) with the least squares of relative errors, so that small messages
/// count as much as large ones. Latency is at least 0.1 us. At least two different sizes.
LinkFit fit_link(const std::vector<std::pair<double, double>>& points);

struct CollectivesReport {
  std::string text;
  std::optional<LinkFit> intra, inter;  ///< of the link classes this job has
};

/// Collective. One rank alone gets a table of one line that says so.
CollectivesReport bench_collectives(Fabric& fabric, const BenchCollectivesOptions& options);

}  // namespace moetrain
