// The oracle: plays a graph through the reference loops, one node after the other, on whole tensors.
#include "graph/interpret.h"

#include <string_view>

#include "base/error.h"
#include "graph/op.h"

namespace moetrain {
namespace {

/// Copies `from` into a tensor of another dtype and the same number of elements.
HostTensor convert(const HostTensor& from, DType dtype, Shape shape) {
  HostTensor to = make_host_tensor(dtype, std::move(shape));
  const Tensor source = from.view(), target = to.view();
  if (from.dtype == dtype) {
    to.bytes = from.bytes;
  } else {
    for (int64_t i = 0, n = target.numel(); i < n; ++i) {
      set_element(target, i, get_element(source, i));
    }
  }
  return to;
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::map<std::string, HostTensor>& feeds,
              const InterpretOptions& options)
      : graph_(graph), feeds_(feeds), options_(options), values_(graph.nodes.size()),
        uses_(graph.nodes.size()), state_of_(graph.nodes.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      values_[i].resize(graph.nodes[i].outputs.size());
      uses_[i].resize(graph.nodes[i].outputs.size(), 0);
      state_of_[i].resize(graph.nodes[i].outputs.size(), -1);
      for (Value v : graph.nodes[i].inputs) ++uses_[v.node][v.output];
    }
    for (const NamedValue& out : graph.outputs) ++uses_[out.value.node][out.value.output];
  }

  std::map<std::string, HostTensor> run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op->reference == nullptr) {
        feed(static_cast<int>(i));
      } else {
        launch(static_cast<int>(i));
      }
      follow_states(static_cast<int>(i));
      for (Value v : node.inputs) release(v);
    }
    std::map<std::string, HostTensor> results;
    for (const NamedValue& out : graph_.outputs) {
      results[out.name] = values_[out.value.node][out.value.output];
    }
    for (auto& [name, content] : states_) results["state:" + name] = std::move(content);
    return results;
  }

 private:
  DType dtype_of(const Type& type) const {
    return options_.in_double && is_float(type.dtype) ? DType::kF64 : type.dtype;
  }

  void feed(int index) {
    const Node& node = graph_.nodes[index];
    MT_CHECK(node.inputs.empty() && node.outputs.size() == 1, "'", node.name, "' (", node.op->name,
             ") cannot be interpreted");
    const auto given = feeds_.find(node.name);
    MT_CHECK(given != feeds_.end(), "no feed for '", node.name, "'");
    Shape shape = node.outputs[0].shape;
    if (node.outputs[0].ragged) {
      shape.erase(shape.begin());
      shape[0] = given->second.shape.at(0);
    }
    MT_CHECK(given->second.shape == shape, "feed of '", node.name, "' is ",
             to_string(given->second.shape), ", not ", to_string(shape));
    values_[index][0] = convert(given->second, dtype_of(node.outputs[0]), shape);
  }

  // A ragged output has the rows of the node's ragged operands. Where ragged rows are born (dispatch)
  // the buffer has room for all of them and the plan, the next output, tells how many there are.
  void launch(int index) {
    const Node& node = graph_.nodes[index];
    std::vector<Tensor> inputs, outputs;
    int64_t rows = -1;
    for (Value v : node.inputs) {
      inputs.push_back(values_[v.node][v.output].view());
      if (graph_.type(v).ragged) rows = inputs.back().shape[0];
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Type& type = node.outputs[o];
      Shape shape = type.shape;
      if (type.ragged) {
        shape.erase(shape.begin());
        if (rows >= 0) shape[0] = rows;
      }
      values_[index][o] = make_host_tensor(dtype_of(type), std::move(shape));
      outputs.push_back(values_[index][o].view());
    }
    node.op->reference(node.attrs, inputs, outputs);
    for (size_t o = 0; rows < 0 && o < node.outputs.size(); ++o) {
      if (node.outputs[o].ragged) shrink(index, o);
    }
  }

  void shrink(int index, size_t output) {
    const Node& node = graph_.nodes[index];
    MT_CHECK(output + 1 < node.outputs.size() && node.outputs[output + 1].dtype == DType::kI32,
             "ragged output ", output, " of '", node.name, "' has no plan behind it");
    HostTensor& rows = values_[index][output];
    const int64_t experts = node.outputs[output].shape[0];
    const int64_t count = values_[index][output + 1].view().as<const int32_t>()[experts];
    MT_CHECK(count >= 0 && count <= rows.shape[0], "'", node.name, "' made ", count, " rows");
    rows.shape[0] = count;
    rows.bytes.resize(rows.view().bytes());
  }

  // Values never change here, so a node that reads a state after its update in the list still sees
  // what the graph says it sees. The content of a state is the last value written in its place.
  void follow_states(int index) {
    const Node& node = graph_.nodes[index];
    if (std::string_view(node.op->name) == "state") {
      state_of_[index][0] = index;
      states_[node.name] = values_[index][0];
      return;
    }
    if (node.op->alias == nullptr) return;
    const bool renames = std::string_view(node.op->name) == "reshape";
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const int operand = node.op->alias(node.attrs, static_cast<int>(o));
      if (operand < 0 || operand >= static_cast<int>(node.inputs.size())) continue;
      const Value shared = node.inputs[operand];
      const int state = state_of_[shared.node][shared.output];
      state_of_[index][o] = state;
      if (state < 0 || renames) continue;
      HostTensor content = values_[index][o];
      content.shape = graph_.nodes[state].outputs[0].shape;
      states_[graph_.nodes[state].name] = std::move(content);
    }
  }

  void release(Value v) {
    if (--uses_[v.node][v.output] == 0) values_[v.node][v.output] = {};
  }

  const Graph& graph_;
  const std::map<std::string, HostTensor>& feeds_;
  const InterpretOptions& options_;
  std::vector<std::vector<HostTensor>> values_;
  std::vector<std::vector<int>> uses_;
  std::vector<std::vector<int>> state_of_;  // node of the state a value lives in, -1 for none
  std::map<std::string, HostTensor> states_;
};

}  // namespace

HostTensor make_host_tensor(DType dtype, Shape shape) {
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.bytes.resize(numel(shape) * size_of(dtype));
  tensor.shape = std::move(shape);
  return tensor;
}

std::map<std::string, HostTensor> interpret(const Graph& graph,
                                            const std::map<std::string, HostTensor>& feeds,
                                            const InterpretOptions& options) {
  return Interpreter(graph, feeds, options).run();
}

}  // namespace moetrain
