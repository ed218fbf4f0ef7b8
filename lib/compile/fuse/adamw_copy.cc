// AdamW writes the compute copy of its parameter in the same pass.
#include "compile/fuse/adamw_copy.h"

#include "compile/fuse/rebuild.h"
#include "ops/basic.h"
#include "ops/update.h"

namespace moetrain {

LocalGraph fuse_adamw_copy(const LocalGraph& local, FusionReport& report) {
  const Graph& old = local.graph;
  const auto users = users_of(old);
  std::map<int, int> assign_of;  // adamw -> assign
  std::vector<bool> gone(old.nodes.size(), false);  // assignments, and casts before them
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    const Node& assign = old.nodes[i];
    if (assign.op != &ops::kAssign || assign.outputs[0].dtype != DType::kBF16) continue;
    const Value copy = assign.inputs[0], given = assign.inputs[1];
    const bool narrowed = old.node(given).op == &ops::kCast && users[given.node].size() == 1;
    const Value master = narrowed ? old.node(given).inputs[0] : given;
    const Node& adamw = old.node(master);
    if (adamw.op != &ops::kAdamw || master.output != 0 || adamw.inputs.size() != 6 ||
        !(adamw.tag == assign.tag)) {
      continue;
    }
    // The copy is overwritten earlier than before: nobody may read it in between.
    bool read = false;
    for (int user : users[copy.node]) read |= user > master.node && user < static_cast<int>(i);
    if (read || !assign_of.emplace(master.node, static_cast<int>(i)).second) continue;
    gone[i] = true;
    if (narrowed) gone[given.node] = true;
    ++report.nodes;
    report.bytes_saved += numel(adamw.outputs[0].shape) * static_cast<int64_t>(sizeof(float));
  }

  Rebuild rebuild(local);
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    const int index = static_cast<int>(i);
    const Node& node = old.nodes[i];
    if (const auto at = assign_of.find(index); at != assign_of.end()) {
      std::vector<Value> inputs = rebuild.values(node.inputs);
      inputs.push_back(rebuild.value(old.nodes[at->second].inputs[0]));
      Attrs attrs = node.attrs;
      attrs.set("copy", int64_t{1});
      const int made = rebuild.append(ops::kAdamw, std::move(inputs), std::move(attrs), index);
      for (int k = 0; k < 3; ++k) rebuild.map({index, k}, {made, k});
      rebuild.map({at->second, 0}, {made, 3});
    } else if (!gone[i]) {
      rebuild.copy(index);
    }
  }
  return rebuild.finish();
}

}  // namespace moetrain
