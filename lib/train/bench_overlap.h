// Times one MoE layer's schedule on parts of known length: how much of its transfers a pair of passes hides.
#pragma once

#include <string>

namespace moetrain {

/// Milliseconds of one layer's parts. Every part sleeps for its length instead of computing, every transfer
/// keeps its lane for its length (an artificial link), so the result does not depend on the machine's speed.
struct BenchOverlapOptions {
  double attention = 4, experts = 3;            ///< forward
  double experts_back = 3, experts_weight = 2;  ///< backward: input gradient, weight gradient
  double attention_back = 6, attention_weight = 2;
  double transfer = 3;                          ///< each of dispatch and combine, forward and backward
  int layers = 8;
  int repeats = 3;
};

/// Milliseconds per layer (forward pass of one micro-batch and backward pass of another), medians.
struct OverlapReport {
  double apart = 0;    ///< one after the other, nothing hidden
  double merged = 0;   ///< as the executor plays the merged pair
  double ideal = 0;    ///< with everything hidden: the parts' sum on the compute lane, at least
  double exposed = 0;  ///< share of the pair's transfer time that computation stood still
  std::string text;
};

/// Local: no other rank takes part.
OverlapReport bench_overlap(const BenchOverlapOptions& options);

}  // namespace moetrain
