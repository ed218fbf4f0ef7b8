// The fusion passes by name, in the order they run.
#include "compile/fuse/passes.h"

#include "compile/fuse/accumulate.h"
#include "compile/fuse/adamw_copy.h"
#include "compile/fuse/gather.h"
#include "compile/fuse/norm_residual.h"
#include "compile/fuse/projections.h"
#include "compile/fuse/rope_split.h"
#include "compile/fuse/side_by_side.h"
#include "compile/fuse/swiglu.h"

namespace moetrain {

namespace {

LocalGraph accumulate(const LocalGraph& local, FusionReport& report) {
  LocalGraph fused = fuse_accumulate(local);
  for (const Node& node : fused.graph.nodes) {
    if (node.attrs.integer_or("accumulate", 0) == 0) continue;
    ++report.nodes;  // an addend written and read again
    report.bytes_saved += 2 * numel(node.outputs[0].shape) * static_cast<int64_t>(sizeof(float));
  }
  return fused;
}

constexpr FusionPass kPasses[] = {
    {"accumulate", &accumulate},
    {"projections", &fuse_projections},
    {"swiglu", &fuse_swiglu},
    {"gather", &fuse_gather},
    {"norm_residual", &fuse_norm_residual},
    {"rope_split", &fuse_rope_split},
    {"adamw_copy", &fuse_adamw_copy},
    {"side_by_side", &fuse_side_by_side},
};

}  // namespace

std::span<const FusionPass> fusion_passes() { return kPasses; }

}  // namespace moetrain
