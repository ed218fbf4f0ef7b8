// One dispatch, grouped product and combine with all gradients, compiled and run on ranks that are
// threads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "plan/ledger.h"
#include "runtime/comm/comm.h"

namespace moetrain::dispatch_test {

/// Sizes and data of one case. x[b, s, h] and so on are row-major; expert e multiplies by w[e] ([h,
/// h]).
struct MoeCase {
  int64_t b = 1, s = 1, h = 1, k = 1, experts = 1;
  DType dtype = DType::kF32;
  std::vector<int32_t> idx;
  std::vector<float> x, weight, w, dy;
};

struct MoeMesh {
  Mesh mesh;
  int ranks_per_node = 0;
  std::vector<std::string> expert_axes, batch_axes;
};
/// One axis "ep" of `ranks` that splits experts and batch.
MoeMesh flat_mesh(int ranks, int ranks_per_node);

struct MoeResult {
  std::map<std::string, std::vector<float>> outputs;  ///< y, dx, dweight, dw
  std::vector<Plan> plans;                            ///< by rank
  std::vector<LocalGraph> locals;
  std::vector<TrafficCounters> traffic;  ///< of one step, by rank
  std::vector<std::map<std::string, LinkTraffic>> rows;
};

Graph moe_graph(const MoeCase& c);
Compiled compile_moe(const MoeCase& c, const MoeMesh& mesh, int rank,
                     std::optional<Transport> transport, const LinkModel& links = {});
/// Runs one step on every rank of the mesh; outputs are rank 0's (replicated).
MoeResult run_moe(const MoeCase& c, const MoeMesh& mesh, std::optional<Transport> transport);
/// The same on one rank.
MoeResult run_whole(const MoeCase& c);

}  // namespace moetrain::dispatch_test
