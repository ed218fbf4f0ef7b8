// Measures what one rank computes, moves and holds, and writes it as the machine file planners read.
#pragma once

#include <string>

#include "train/bench_collectives.h"
#include "train/machine.h"

namespace moetrain {

struct MachineMeasurement {
  Machine machine;   ///< the slowest rank's speeds; links this job has not keep their defaults
  std::string text;  ///< for people
};

/// Collective. All ranks compute at once, as in training, each with `threads` threads (0: its share of
/// the cores).
MachineMeasurement measure_machine(Fabric& fabric, int threads,
                                   const BenchCollectivesOptions& options);

/// FLOP/s of one rank while all ranks compute: the slowest rank's. Collective.
struct RankPeaks {
  double fp32 = 0, bf16 = 0, copy = 0;
};
RankPeaks probe_rank_peaks(Fabric& fabric, int threads);

}  // namespace moetrain
