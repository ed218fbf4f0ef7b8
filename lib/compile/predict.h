// Predicted durations: what an instruction of a plan takes on one rank of the machine the planner sees.
#pragma once

#include "compile/shard/reshard.h"
#include "plan/plan.h"

namespace moetrain {

/// Do the members of a group live on more than one node of `links.ranks_per_node` consecutive ranks?
bool crosses_nodes(const RankGroup& group, const LinkModel& links);

/// Seconds of one instruction by itself: matrix products at the machine's rate or memory traffic at its
/// bandwidth, whichever is longer; collectives by the two-level formulas of collective_cost; messages
/// between stages at the receiver. Rows counted at run time are taken at balanced routing. The same on
/// all ranks of a stage.
double predicted_seconds(const Plan& plan, const Instruction& instruction, const LinkModel& links);

}  // namespace moetrain
