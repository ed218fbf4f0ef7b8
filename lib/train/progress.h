// What a person sees while training runs: one updating line on a terminal, plain lines in a batch
// log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "train/metrics.h"

namespace moetrain {

/// Is standard output seen by a person? False in pipes, files and batch jobs, and with TERM=dumb.
/// Under Open MPI's mpirun every process has a pseudo-terminal, so its launcher's output decides.
bool output_is_terminal();

/// "1h02m", "3m05s", "12s".
std::string human_duration(double seconds);

/// Rank 0 only. Not thread-safe.
class ProgressLine {
 public:
  /// Plain mode prints one line per `interval` steps (and at the first and last step, and whenever
  /// a validation loss was taken); terminal mode rewrites one line every step.
  ProgressLine(int64_t total_steps, int64_t interval, bool terminal, std::FILE* out = stdout);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const StepMetrics& metrics);
  /// Ends the updating line, so that other output can follow.
  void finish();

  /// The text for a step, without line ends.
  std::string text(const StepMetrics& metrics) const;

 private:
  int64_t total_steps_, interval_;
  bool terminal_;
  std::FILE* out_;
  double seconds_per_step_ = 0;  // running mean that forgets the slow first steps
  int64_t updates_ = 0;
  bool open_ = false;
};

}  // namespace moetrain
