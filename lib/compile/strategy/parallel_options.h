// The parallel section as plain numbers, and the mesh of one stage that follows from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/mesh.h"
#include "compile/shard/propagate.h"

namespace moetrain {

/// How the ranks of one pipeline stage share the work. `expert` counts data x context ranks.
struct ParallelOptions {
  int data = 1, context = 1, tensor = 1, expert = 1;
  bool sequence_parallel = false;
  /// Experts whole over expert x tensor ranks, instead of their hidden dim split over tensor.
  bool tp_extend_ep = false;
  int zero = 1;  ///< 0: optimizer state like the parameters; 1: spread; 3: parameters spread as well
  std::vector<std::pair<std::string, int>> mesh;  ///< the user's own axes of a stage, major first
  std::vector<LayoutRow> user_rows;               ///< from user.h; locked

  int stage_ranks() const { return data * context * tensor; }
};

/// The mesh of one stage, whose ranks are numbered data-major, then context, then tensor. Atoms are the
/// common refinement of data x context x tensor, (edp x expert) x tensor and the user's axes; every name
/// dp, cp, tp, edp, ep and the user's is a run of atoms (an empty run for one rank). Example: data 4,
/// context 2, expert 4 gives atoms 2, 2, 2 with dp = [0, 1], cp = [2], edp = [0], ep = [1, 2].
/// Throws UserError with the formula where no common refinement exists.
Mesh build_mesh(const ParallelOptions& options, int first_rank = 0);

}  // namespace moetrain
