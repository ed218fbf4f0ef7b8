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
  void ran(const Segment& segment, const Instruction& instruction, double begin_seconds,
           double end_seconds) override;
  /// The events as comma-separated JSON objects (one process per rank, one thread per lane).
  std::string events() const;
  void clear() { events_.clear(); }

 private:
  struct Span {
    std::string name, kind, segment;
    int lane;
    double begin, end;
  };
  int rank_;
  std::vector<Span> events_;
};

/// Joins the ranks' events into one trace file's content.
std::string trace_json(const std::vector<std::string>& events_of_ranks);

}  // namespace moetrain
