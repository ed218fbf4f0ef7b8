// Memory of a plan: frames of micro-batches in flight, the arena all segments share, rows.
#pragma once

#include "plan/plan.h"

namespace moetrain {

/// Gives what lives from one segment to another (and the inputs of a micro-batch) an offset in the frame of
/// the earliest chunk that touches it. Fills frames (their sizes), homes and the segments' frames.
void place_frames(Plan& plan);
/// Gives everything else an offset in the arena, once all segments stand, merged ones too. Transfers hold
/// their buffers until the compute lane has waited for them. Fills arena_bytes.
void place_arena(Plan& plan);
/// The frames of merged segments: those of their parts.
void merge_frames(Plan& plan);

/// Peak of row memory when the segments run in this order; fills ragged_bytes and ragged_bytes_worst.
void measure_rows(Plan& plan, const std::vector<int>& segments);

}  // namespace moetrain
