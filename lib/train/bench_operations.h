// Where the time of a step goes, operation by operation, as the executor ran it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/executor.h"
#include "train/session.h"

namespace moetrain {

/// Adds up the instructions of the segments it observes, by operation. Local.
class OperationTimes : public ExecutionObserver {
 public:
  /// `session` must outlive the observer.
  explicit OperationTimes(Session& session) : session_(session) {}
  void ran(const Segment& segment, const Instruction& instruction, const Executed& times) override;

  /// The costliest first; products with their rate and share of `peak_flops`. `step_seconds` is what the
  /// whole took; what no instruction accounts for is the last line.
  /// Of transfers beside computation only the time that was not hidden counts.
  std::string table(double step_seconds, double peak_flops) const;

 private:
  struct Row {
    int64_t calls = 0;
    double seconds = 0, flops = 0;
  };
  double flops_of(const Launch& launch) const;

  Session& session_;
  std::map<std::string, Row> rows_;
};

}  // namespace moetrain
