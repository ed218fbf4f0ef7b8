// Memory of a plan: frames of micro-batches in flight, the arena all segments share, rows.
#pragma once

#include "plan/plan.h"

namespace moetrain {

/// Gives every buffer its place once the instructions stand: what lives from one segment to another (and
/// the inputs of a micro-batch) gets an offset in the frame of the earliest chunk that touches it,
/// everything else an offset in the arena. Fills frames (their sizes), the segments' frames, offsets and
/// arena_bytes.
void place_memory(Plan& plan);

/// Peak of row memory when the segments run in this order; fills ragged_bytes and ragged_bytes_worst.
void measure_rows(Plan& plan, const std::vector<int>& segments);

}  // namespace moetrain
