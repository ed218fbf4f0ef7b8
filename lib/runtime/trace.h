// What ran when, as a Chrome/Perfetto trace.
#pragma once

#include <string>
#include <vector>

#include "runtime/executor.h"

namespace moetrain {

/// Collects the instructions of the segments it observes.
class TraceRecorder : public ExecutionObserver {
 public:
  explicit TraceRecorder(int rank) : rank_(rank) {}
  void ran(const Segment& segment, const Instruction& instruction, const Executed& times) override;
  /// The events as comma-separated JSON objects (one process per rank, one thread per lane); a transfer that
  /// was not hidden says for how long (`exposed_us`).
  std::string events() const;
  /// One JSON member: `"rank 0": {"all_gather": {"total_ms": .., "exposed_ms": ..}, ..}`, communication of the
  /// recorded time summed by kind, and "all".
  std::string summary() const;
  void clear() { events_.clear(); }

 private:
  struct Span {
    std::string name, kind, segment;
    int lane;
    bool communication;
    Executed times;
  };
  int rank_;
  std::vector<Span> events_;
};

/// Joins the ranks' events and summaries into one trace file's content.
std::string trace_json(const std::vector<std::string>& events_of_ranks,
                       const std::vector<std::string>& summaries);

}  // namespace moetrain
