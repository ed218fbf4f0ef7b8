// Plays: a stage's timetable as runs of the plan's segments, each in the frames of its micro-batch.
#pragma once

#include <vector>

#include "compile/schedule/timetable.h"
#include "plan/plan.h"

namespace moetrain {

/// One run of a segment.
struct Play {
  int segment = 0;          ///< index into Plan::segments
  int micro = 0;
  bool feeds = false;       ///< first run of its chunk for this micro-batch: inputs are written before it
  std::vector<int> frames;  ///< per frame group, the frame of this micro-batch (0 where not open)
};

/// What a stage does in one step, before the update. A frame of chunk c opens at the chunk's forward pass
/// and is free again after the last segment that touches it; the lowest free frame is taken, so the same
/// timetable always plays in the same frames.
std::vector<Play> plays_of(const Plan& plan, const std::vector<Action>& actions);

/// Frames each group needs for these plays.
std::vector<int> frames_needed(const Plan& plan, const std::vector<Play>& plays);

}  // namespace moetrain
