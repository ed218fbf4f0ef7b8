// Lower: from one rank's graph to its plan: slots, memory, row extents, instructions in order.
#pragma once

#include "base/stages.h"
#include "compile/partition.h"
#include "compile/tape.h"
#include "plan/plan.h"

namespace moetrain {

struct LowerOptions {
  int world = 1;
  Stages stages;
  bool split_weights = false;  ///< the timetable plays weight gradients by themselves
  bool whole_steps = true;     ///< without stages: forward and backward pass are one segment, "step"
  LinkModel links;             ///< for predicted durations
  OverlapOptions overlap;
  /// Segments to be had merged as well (Segment::parts), by name; those with an absent part are left out.
  std::vector<std::vector<std::string>> merged;
};

/// Turns `local` into the plan of `rank`, cut into segments (segments.h). In-place ops share the slot of
/// the operand they overwrite; memory of dead values is reused inside one arena; rows counted at run time
/// are allocated and freed by the tape. `mesh` is that of the rank's stage.
Plan lower(const LocalGraph& local, const Mesh& mesh, int rank, const LowerOptions& options);

/// Offsets for buffers with life times: `begin` and `end` are instruction indices, both inclusive.
struct Interval {
  int begin = 0, end = 0;
  int64_t bytes = 0;
  int64_t offset = 0;  ///< out
};
/// Assigns offsets (multiples of 64) so that buffers alive together do not overlap; returns the size of
/// the arena. Largest buffers are placed first.
int64_t place_intervals(std::vector<Interval>& intervals);

}  // namespace moetrain
