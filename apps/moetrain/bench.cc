// `moetrain bench`: what this machine computes and moves.
#include <cstdio>

#include "base/log.h"
#include "checkpoint/file.h"
#include "commands.h"
#include "train/fabric.h"
#include "train/measure.h"

namespace moetrain {

int run_bench(const BenchCommand& c) {
  FabricOptions options;
  return run_on_fabric(options, [&](Fabric& fabric) {
    MeasureOptions m;
    m.kernels = c.what != "collectives";
    m.collectives = c.what != "kernels";
    m.seconds = c.seconds;
    const MachineMeasurement result = measure_machine(fabric, m);
    if (fabric.rank() == 0) {
      std::fputs(result.text.c_str(), stdout);
      if (!c.output.empty()) write_file_atomically(c.output, machine_yaml(result.machine));
      std::fflush(stdout);
    }
    return 0;
  });
}

}  // namespace moetrain
