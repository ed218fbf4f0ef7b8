// Candidate assignments of one op: projections of known layouts onto its factors, and idle axes added.
#pragma once

#include <vector>

#include "compile/shard/problem.h"

namespace moetrain {

/// A layout that some neighbour has or wants for one operand or result of the op.
struct Known {
  bool operand = true;
  int index = 0;
  int layout = -1;  ///< layout number
  int dual = -1;    ///< layout of the gradient at the neighbour
  bool once = false;  ///< what moves between them does so once per update, not in every micro-batch
};

struct CandidateOptions {
  const std::map<char, std::vector<Axis>>* locked = nullptr;
  const FactorAxes* first = nullptr;  ///< tried before all others (letters the rule lacks are dropped)
  bool use_idle_axes = false;         ///< try axes that no neighbour uses on the largest factors
  size_t limit = 64;
};

/// Distinct possible assignments, in a fixed order; never empty unless `locked` is impossible.
/// A pending sum is kept only where all known operands of a linear group have it, and not by ops whose
/// factors some row locks (those finish it first; token rows excepted).
std::vector<const Decision*> candidates(Problem& problem, int node, const std::vector<Known>& known,
                                        const CandidateOptions& options);

/// Puts the axes of `layout` on the factors of one operand or result, as far as they divide, are free
/// and are allowed there.
void project(const Problem& problem, int node, bool operand, int index, const Layout& layout,
             FactorAxes& factors);

}  // namespace moetrain
