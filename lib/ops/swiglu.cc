// The gated activation silu(gate) * up, forward and backward.
#include "ops/swiglu.h"

#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

std::vector<Type> infer_swiglu(const Attrs&, Types inputs) {
  check_count("swiglu", inputs.size(), 2);
  check_float("swiglu", inputs[0]);
  MT_CHECK(inputs[0] == inputs[1], "swiglu: gate ", to_string(inputs[0]), ", up ",
           to_string(inputs[1]));
  return {inputs[0]};
}

std::string rule_swiglu(const Attrs&, Types) { return "*,*->*"; }

std::vector<Value> vjp_swiglu(Graph& graph, int node, std::span<const Value> dy) {
  const Value gate = graph.nodes[node].inputs[0], up = graph.nodes[node].inputs[1];
  const int grad = graph.append(kSwigluGrad, {dy[0], gate, up}, {}, "grad");
  return {{grad, 0}, {grad, 1}};
}

Cost cost_swiglu(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 12);
}

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

void reference_swiglu(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    const double z = get_element(inputs[0], i);
    set_element(outputs[0], i, z * sigmoid(z) * get_element(inputs[1], i));
  }
}

std::vector<Type> infer_grad(const Attrs&, Types inputs) {
  check_count("swiglu_grad", inputs.size(), 3);
  check_float("swiglu_grad", inputs[0]);
  MT_CHECK(inputs[1] == inputs[2] && inputs[0].shape == inputs[1].shape &&
               inputs[0].ragged == inputs[1].ragged,
           "swiglu_grad: dy ", to_string(inputs[0]), ", gate ", to_string(inputs[1]), ", up ",
           to_string(inputs[2]));
  return {inputs[1], inputs[2]};
}

std::string rule_grad(const Attrs&, Types) { return "*,*,*->*,*; linear 0"; }

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 20);
}

// d silu(z) / dz = sigmoid(z) (1 + z (1 - sigmoid(z))).
void reference_grad(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    const double dy = get_element(inputs[0], i);
    const double z = get_element(inputs[1], i), up = get_element(inputs[2], i);
    const double s = sigmoid(z);
    set_element(outputs[0], i, dy * up * s * (1.0 + z * (1.0 - s)));
    set_element(outputs[1], i, dy * z * s);
  }
}

}  // namespace

constinit const OpDef kSwiglu = {"swiglu",   infer_swiglu, rule_swiglu,
                                 vjp_swiglu, cost_swiglu,  reference_swiglu};
constinit const OpDef kSwigluGrad = {"swiglu_grad", infer_grad, rule_grad,
                                     nullptr,       cost_grad,  reference_grad};

Value swiglu(Graph& g, Value gate, Value up, const std::string& name) {
  return g.add(kSwiglu, {gate, up}, {}, name);
}

}  // namespace moetrain::ops
