// Measures a rank's kernels and links, for people and for the machine file the planner reads.
#pragma once

#include <string>

#include "runtime/comm/comm.h"
#include "train/machine.h"

namespace moetrain {

struct MeasureOptions {
  bool kernels = true, collectives = true;
  double seconds = 0.2;  ///< for each measurement
};

struct MachineMeasurement {
  Machine machine;   ///< the slowest rank's speeds; what was not measured keeps its default
  std::string text;  ///< a table
};

/// Collective. Kernels run on every rank at once, as in training.
MachineMeasurement measure_machine(Fabric& fabric, const MeasureOptions& options);

}  // namespace moetrain
