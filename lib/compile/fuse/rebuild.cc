// Copying graphs with changes.
#include "compile/fuse/rebuild.h"

#include "base/error.h"
#include "ops/basic.h"

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

std::vector<Value> Rebuild::values_but(const std::vector<Value>& old_values, size_t but) {
  std::vector<Value> out;
  for (size_t i = 0; i < old_values.size(); ++i) out.push_back(i == but ? Value{} : value(old_values[i]));
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

bool same_phase(const Graph& graph, int a, int b) {
  const Tag &x = graph.nodes[a].tag, &y = graph.nodes[b].tag;
  return x.phase == y.phase && x.stage == y.stage;
}

int bf16_cast_of(const Graph& graph, const std::vector<std::vector<int>>& users, Value v, int near) {
  for (int user : users[v.node]) {
    const Node& node = graph.nodes[user];
    if (node.op == &ops::kCast && node.inputs[0] == v && same_phase(graph, user, near) &&
        node.outputs[0].dtype == DType::kBF16) {
      return user;
    }
  }
  return -1;
}

namespace {

/// Rows of a ragged value at balanced routing: as its node, or who gave its node the rows, counted them.
int64_t expected_rows(const Graph& graph, Value value) {
  for (;;) {
    const Node& node = graph.node(value);
    if (node.attrs.has("which") && graph.node(node.inputs.back()).attrs.has("expected")) {
      return graph.node(node.inputs.back()).attrs.integers("expected").at(
          static_cast<size_t>(node.attrs.integer("which")));
    }
    Value ragged;
    if (node.attrs.has("rows_of")) {
      ragged = node.inputs.at(node.attrs.integers("rows_of").at(static_cast<size_t>(value.output)));
    } else {
      for (Value v : node.inputs) {
        if (graph.type(v).ragged && !ragged.valid()) ragged = v;
      }
    }
    if (!ragged.valid()) return graph.type(value).shape[1];
    value = ragged;
  }
}

}  // namespace

int64_t expected_bytes(const Graph& graph, Value value) {
  const Type& type = graph.type(value);
  const int64_t size = static_cast<int64_t>(size_of(type.dtype));
  if (!type.ragged) return numel(type.shape) * size;
  int64_t row = size;
  for (size_t d = 2; d < type.shape.size(); ++d) row *= type.shape[d];
  return expected_rows(graph, value) * row;
}

}  // namespace moetrain
