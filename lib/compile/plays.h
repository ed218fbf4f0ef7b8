// Plays: a stage's timetable as runs of the plan's segments, each in the frames of its micro-batch.
#pragma once

#include <string>
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
  int back_micro = -1;           ///< of a merged pair: the micro-batch of side 1
  std::vector<int> back_frames;  ///< and its frames
  bool updates = false;          ///< the update is part of it
};

/// Segments worth merging (LowerOptions::merged): pairs of the timetable and its end with the update.
/// `whole`: forward passes stand for whole steps.
std::vector<std::vector<std::string>> merged_segments(const std::vector<Action>& actions, bool whole,
                                                      bool splits_weights);

/// What a stage does in one step: all but the update, unless the plan has it merged with the last pass.
/// Merged segments are played where the plan has them, otherwise their parts one after the other. A frame
/// of chunk c opens at the chunk's forward pass
/// and is free again after the last segment that touches it; the lowest free frame is taken, so the same
/// timetable always plays in the same frames.
std::vector<Play> plays_of(const Plan& plan, const std::vector<Action>& actions);

/// Frames each group needs for these plays.
std::vector<int> frames_needed(const Plan& plan, const std::vector<Play>& plays);

}  // namespace moetrain
