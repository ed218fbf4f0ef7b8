// Building, checking and printing graphs.
#include "graph/graph.h"

#include "base/error.h"
#include "graph/op.h"

namespace moetrain {

std::string to_string(const Type& type) {
  return cat(name_of(type.dtype), type.ragged ? "ragged" : "", to_string(type.shape));
}

int Graph::append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, std::string name) {
  std::vector<Type> types;
  types.reserve(inputs.size());
  for (Value v : inputs) {
    MT_CHECK(v.node >= 0 && v.node < static_cast<int>(nodes.size()), "input of ", op.name, " '",
             scope, name, "' is not a value of this graph");
    types.push_back(type(v));
  }
  Node node;
  node.outputs = op.infer(attrs, types);
  node.op = &op;
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  node.tag = tag;
  node.name = scope + (name.empty() ? op.name : name);
  node.forward = forward_of;
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

void verify(const Graph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    MT_CHECK(node.op != nullptr && node.op->infer != nullptr, "node ", i);
    std::vector<Type> types;
    for (Value v : node.inputs) {
      MT_CHECK(v.node >= 0 && v.node < static_cast<int>(i), "node ", i, " '", node.name,
               "' reads a later node");
      MT_CHECK(v.output >= 0 &&
                   v.output < static_cast<int>(graph.nodes[v.node].outputs.size()),
               "node ", i, " '", node.name, "' reads a missing output");
      types.push_back(graph.type(v));
    }
    MT_CHECK(node.op->infer(node.attrs, types) == node.outputs, "types of node ", i, " '",
             node.name, "'");
  }
  for (const NamedValue& out : graph.outputs) {
    MT_CHECK(out.value.node >= 0 && out.value.node < static_cast<int>(graph.nodes.size()),
             "output '", out.name, "'");
  }
}

std::string print(const Graph& graph) {
  std::string text;
  auto value_name = [](Value v) {
    return v.output == 0 ? cat("%", v.node) : cat("%", v.node, ".", v.output);
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    std::vector<std::string> inputs, types;
    for (Value v : node.inputs) inputs.push_back(value_name(v));
    for (const Type& t : node.outputs) types.push_back(to_string(t));
    text += cat("%", i, " = ", node.op->name, "(", join(inputs, ", "), ")");
    const std::string attrs = to_string(node.attrs);
    if (!attrs.empty()) text += " " + attrs;
    text += cat(" : ", join(types, ", "), "  # ", node.name, "\n");
  }
  for (const NamedValue& out : graph.outputs) {
    text += cat("output ", out.name, " = ", value_name(out.value), "\n");
  }
  return text;
}

std::vector<std::vector<int>> users_of(const Graph& graph) {
  std::vector<std::vector<int>> users(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (Value v : graph.nodes[i].inputs) users[v.node].push_back(static_cast<int>(i));
  }
  return users;
}

}  // namespace moetrain
