// What every fabric promises, checked against closed-form results; the same code for threads and MPI.
#pragma once

#include "runtime/comm/comm.h"

namespace moetrain::test {

/// Runs all verbs with odd, large and empty sizes over all ranks and over subgroups, inline and on
/// lanes of their own; throws std::runtime_error naming the first wrong result. Collective.
void check_fabric(Fabric& fabric);

/// Sums values whose result depends on the order of addition and throws unless they follow the
/// documented association (node by node, in group order) bit by bit. Collective.
void check_summation_order(Fabric& fabric);

/// Moves more than 2^31 bytes from rank 0 to the last rank (needs about 6 GB on one machine).
void check_huge_message(Fabric& fabric);

}  // namespace moetrain::test
