// What one fusion pass did.
#pragma once

#include <cstdint>

namespace moetrain {

struct FusionReport {
  int nodes = 0;           ///< nodes that became part of another
  int64_t bytes_saved = 0;  ///< reads and writes of main memory that no longer happen, per run of the nodes
};

}  // namespace moetrain
