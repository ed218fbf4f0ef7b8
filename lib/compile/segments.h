// Segments: which nodes of one rank's graph a timetable plays together.
#pragma once

#include <string>
#include <vector>

#include "base/stages.h"
#include "graph/graph.h"

namespace moetrain {

/// Nodes that run as one, in the order of the graph.
struct SegmentNodes {
  std::string name;
  int chunk = -1;  ///< local to the stage; -1: the update
  std::vector<int> nodes;
};

/// `whole`: "step" (forward and backward) and "update". Otherwise, per chunk c of this rank, "F.c" and
/// "B.c", and "update"; with `split_weights` a backward pass is cut in two: what the chunk
/// before waits for stays in "B.c", the rest (weight gradients, sums) is "W.c". Listed in the order one
/// micro-batch passes them; empty segments are left out, leaves (inputs, states) are in none.
std::vector<SegmentNodes> cut_segments(const Graph& local, const Stages& stages,
                                       bool split_weights, bool whole);

}  // namespace moetrain
