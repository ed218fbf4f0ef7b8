// Casts of one value to one dtype happen once.
#include "compile/fuse/casts.h"

#include <tuple>

#include "compile/fuse/rebuild.h"
#include "ops/basic.h"

namespace moetrain {

LocalGraph fuse_casts(const LocalGraph& local, FusionReport& report) {
  const Graph& old = local.graph;
  Rebuild rebuild(local);
  std::map<std::tuple<Value, DType, Phase, int>, int> first;
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    const int index = static_cast<int>(i);
    const Node& node = old.nodes[i];
    // A state may be overwritten between two casts of it.
    if (node.op == &ops::kCast && old.node(node.inputs[0]).op != &ops::kState) {
      const auto [at, fresh] = first.try_emplace(
          {node.inputs[0], node.outputs[0].dtype, node.tag.phase, node.tag.stage}, index);
      if (!fresh) {
        rebuild.map({index, 0}, rebuild.value({at->second, 0}));
        ++report.nodes;
        const Type &from = old.type(node.inputs[0]), &to = node.outputs[0];
        report.bytes_saved += numel(to.shape) * static_cast<int64_t>(size_of(from.dtype) + size_of(to.dtype));
        continue;
      }
    }
    rebuild.copy(index);
  }
  return rebuild.finish();
}

}  // namespace moetrain
