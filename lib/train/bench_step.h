// Times whole training steps of a config against the same config with switches changed.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "runtime/comm/comm.h"

namespace moetrain {

/// A config to time. Resolved and validated for the fabric by bench_steps.
struct StepVariant {
  std::string name;
  Config config;
  bool reference = false;  ///< every op by its reference loops
};

struct BenchStepOptions {
  int steps = 7;          ///< timed steps of each variant, after one that is not
  bool operations = true; ///< add the table of operations of the first variant
};

struct StepTiming {
  std::string name;
  double seconds = 0;             ///< median step
  double best_seconds = 0;
  double cpu_seconds = 0;         ///< processor time of all ranks, user and system
  double comm_seconds = 0;        ///< with transfers under way, mean over ranks
  double exposed_seconds = 0;     ///< of those, that computation waited for
  int64_t inter_bytes = 0;        ///< of all ranks to other nodes, in one step
  double tokens_per_second = 0;   ///< of the job, by the median
  double mfu = 0;                 ///< of the peak probed in this run, or the machine file's
  int64_t planned_bytes = 0;      ///< states, activations, balanced token rows; the fullest rank
  int64_t device_bytes = 0;       ///< held by the executor; the fullest rank
};

struct StepsReport {
  std::vector<StepTiming> timings;  ///< one per variant
  double peak_flops = 0;            ///< of one rank
  bool peak_probed = false;
  int64_t process_bytes = 0;  ///< most memory a process held, first variant built and run, no other yet
  std::string operations;     ///< table, empty without

  /// For people: rates, ratios to the first variant, memory, operations.
  std::string text() const;
  std::string json() const;
};

/// Runs the variants in turns: one step of each, then the next of each, so that whatever else the machine
/// does meets all of them. Token ids are drawn at random; no data files are read. Collective.
StepsReport bench_steps(Fabric& fabric, std::vector<StepVariant> variants,
                        const BenchStepOptions& options);

}  // namespace moetrain
