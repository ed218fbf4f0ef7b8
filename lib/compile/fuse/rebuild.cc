// Copying graphs with changes.
#include "compile/fuse/rebuild.h"

#include "base/error.h"

namespace moetrain {

Value Rebuild::value(Value v) {
  auto at = map_.find(v);
  if (at != map_.end()) return at->second;
  MT_CHECK(old().nodes[v.node].inputs.empty(), "'", old().nodes[v.node].name,
           "' is read before it is rebuilt");
  copy(v.node);
  return map_.at(v);
}

std::vector<Value> Rebuild::values(const std::vector<Value>& old_values) {
  std::vector<Value> out;
  for (Value v : old_values) out.push_back(value(v));
  return out;
}

int Rebuild::append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, int like,
                    const std::string& name) {
  const Node& node = old().nodes[like];
  new_.tag = node.tag;
  return new_.append(op, std::move(inputs), std::move(attrs), name.empty() ? node.name : name);
}

void Rebuild::copy(int index) {
  const Node& node = old().nodes[index];
  if (!node.outputs.empty() && map_.count({index, 0})) return;
  const int made = append(*node.op, values(node.inputs), node.attrs, index);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    map_[{index, static_cast<int>(k)}] = {made, static_cast<int>(k)};
  }
}

LocalGraph Rebuild::finish() {
  LocalGraph out;
  for (const NamedValue& o : old().outputs) new_.outputs.push_back({o.name, value(o.value)});
  for (LocalPort p : old_.states) {
    p.value = value(p.value);
    out.states.push_back(std::move(p));
  }
  for (LocalPort p : old_.inputs) {
    p.value = value(p.value);
    out.inputs.push_back(std::move(p));
  }
  out.reshards = old_.reshards;
  out.dispatches = old_.dispatches;
  out.graph = std::move(new_);
  return out;
}

std::map<Value, int> reader_counts(const Graph& graph) {
  std::map<Value, int> counts;
  for (const Node& node : graph.nodes) {
    for (Value v : node.inputs) ++counts[v];
  }
  for (const NamedValue& o : graph.outputs) ++counts[o.value];
  return counts;
}

}  // namespace moetrain
