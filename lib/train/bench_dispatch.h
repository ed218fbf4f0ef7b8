// Times every token transport on made-up routings.
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "compile/shard/dispatch_cost.h"
#include "compile/shard/reshard.h"
#include "runtime/comm/comm.h"

namespace moetrain {

struct BenchDispatchOptions {
  int repeats = 11;
  int threads = 0;                 ///< of a rank; 0: its share of the cores
  int64_t tokens = 1024;           ///< of one rank
  int64_t hidden = 512, experts = 16, top_k = 4;  ///< experts: a multiple of the ranks
  DType dtype = DType::kBF16;
  LinkModel links;                 ///< for the predicted column
  std::optional<Transport> transport;  ///< only this one
  std::string routing;             ///< only this one: even, uniform, skewed, first
};

/// Dispatch and combine of token rows without experts between them (every row comes back as it went),
/// over all ranks, with routings that are even, uniform, skewed and all to the first experts. Verifies the rows that
/// come back. The text has one line per transport and routing. Collective. UserError for sizes that do
/// not divide.
std::string bench_dispatch(Fabric& fabric, const BenchDispatchOptions& options);

}  // namespace moetrain
