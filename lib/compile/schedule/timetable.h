// Timetables: in which order every stage of a pipeline plays its chunks and micro-batches. Pure data.
#pragma once

#include <string>
#include <vector>

#include "base/stages.h"

namespace moetrain {

/// What a stage does at once. `kInputGradient` is the part of a backward pass that the stage before waits
/// for; its weight gradients follow as a `kWeightGradient`. `kBoth` is the forward pass of (chunk, micro)
/// overlapped with the whole backward pass of (back_chunk, back_micro).
struct Action {
  enum Kind { kForward, kBackward, kInputGradient, kWeightGradient, kBoth };
  Kind kind = kForward;
  int chunk = 0;  ///< local to the stage
  int micro = 0;
  int back_chunk = -1, back_micro = -1;
  bool operator==(const Action&) const = default;
};

/// Actions of every stage, in order.
struct Timetable {
  Stages stages;
  int micro_batches = 0;
  std::vector<std::vector<Action>> of_stage;
  bool splits_weights = false;  ///< some weight gradients are their own action
};

/// 1F1B with any number of chunks per stage (more than one: interleaved, which needs a multiple of
/// stages.count micro-batches). Fused: forward and backward of different micro-batches run as pairs, which
/// needs 2 (count - stage) - 1 warm-up passes instead of count - stage - 1 with one chunk, and one more
/// than 2 (count - stage - 1) + (per_stage - 1) count with several.
Timetable one_forward_one_backward(const Stages& stages, int micro_batches, bool fused);
/// DualPipeV: two chunks per stage, folded; at least 2 count micro-batches.
Timetable dual_pipe_v(int stages, int micro_batches);
/// Forward passes only, of any number of micro-batches.
Timetable forward_only(const Stages& stages, int micro_batches);

enum class PipelineOrder { k1F1B, kFused1F1B, kDualPipeV, kForwardOnly };
/// The timetable of an order. With one stage: micro-batch after micro-batch, forward passes standing for
/// whole steps; or, fused, the forward pass of each beside the backward pass of the one before.
Timetable make_timetable(PipelineOrder order, const Stages& stages, int micro_batches);

/// Durations of one chunk's passes, in any unit. A whole backward pass takes `backward`, of which the
/// weight gradients are `weight`; an overlapped pair takes `both`.
struct PassTimes {
  double forward = 1, backward = 2, weight = 1, both = 3;
};

/// A timetable played out.
struct Played {
  double time = 0;
  double idle = 0;                ///< the most idle time of a stage
  std::vector<double> busy;       ///< per stage
  std::vector<int> peak;          ///< per stage: most chunk activations alive
};

/// Plays a timetable: an action starts when its stage is free and what it needs has arrived (transfers
/// take no time). Throws InternalError when stages wait for one another forever, when messages between two
/// stages would be received in another order than sent, or when any pass is missing, doubled or early.
Played play(const Timetable& timetable, const PassTimes& times, bool forward_only = false);
/// The same with durations of their own for every stage.
Played play_stages(const Timetable& timetable, std::vector<PassTimes> of_stage, bool forward_only = false);

/// One line per stage, e.g. `F0.0 F0.1 B0.0 F0.2|B0.1 W0.0` (chunk.micro-batch).
std::string print(const Timetable& timetable);

}  // namespace moetrain
