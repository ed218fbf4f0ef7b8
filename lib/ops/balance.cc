// The sequence-wise balance loss over the router's statistics.
#include "ops/common.h"
#include "ops/route.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

std::vector<Type> infer_balance(const Attrs& attrs, Types inputs) {
  check_count("balance_loss", inputs.size(), 3);
  MT_CHECK(inputs[0].shape.size() == 2 && inputs[1].shape == inputs[0].shape &&
               is_float(inputs[0].dtype) && is_float(inputs[1].dtype) && inputs[2].shape.empty(),
           "balance_loss: plain ", to_string(inputs[0]), ", mean_score ", to_string(inputs[1]),
           ", scale ", to_string(inputs[2]));
  attrs.real("coefficient");
  return {{DType::kF32, {}}};
}

// A product of two statistics: each may be pending alone, never both.
std::string rule_balance(const Attrs&, Types) { return "be,be,->; whole e; linear 0|1|2"; }

// The backward op knows no incoming gradient, so a constant one is folded into the coefficient.
std::vector<Value> vjp_balance(Graph& graph, int node, std::span<const Value> dy) {
  const Node n = graph.nodes[node];
  double factor = 0;
  MT_CHECK(is_constant(graph, dy[0], &factor), "balance_loss '", n.name,
           "' must enter the total loss with a constant factor");
  const double coefficient = factor * n.attrs.real("coefficient");
  return {{},
          graph.add(kBalanceLossGrad, {n.inputs[0], n.inputs[2]}, {{"coefficient", coefficient}},
                    "grad"),
          {}};
}

Cost cost_balance(const Attrs&, Types inputs, Types outputs) {
  return {0, 2.0 * static_cast<double>(elements(inputs[0])), bytes_of(inputs) + bytes_of(outputs)};
}

void reference_balance(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  double sum = 0;
  for (int64_t i = 0, n = inputs[0].numel(); i < n; ++i) {
    sum += get_element(inputs[0], i) * get_element(inputs[1], i);
  }
  set_element(outputs[0], 0, get_element(inputs[2], 0) * attrs.real("coefficient") * sum);
}

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  check_count("balance_loss_grad", inputs.size(), 2);
  MT_CHECK(inputs[0].shape.size() == 2 && is_float(inputs[0].dtype) && inputs[1].shape.empty(),
           "balance_loss_grad: plain ", to_string(inputs[0]), ", scale ", to_string(inputs[1]));
  attrs.real("coefficient");
  return {{DType::kF32, inputs[0].shape}};
}

std::string rule_grad(const Attrs&, Types) { return "be,->be; linear 0|1"; }

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 1);
}

void reference_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double factor = get_element(inputs[1], 0) * attrs.real("coefficient");
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    set_element(outputs[0], i, factor * get_element(inputs[0], i));
  }
}

}  // namespace

constinit const OpDef kBalanceLoss = {"balance_loss", infer_balance, rule_balance,
                                      vjp_balance,    cost_balance,  reference_balance};
constinit const OpDef kBalanceLossGrad = {"balance_loss_grad", infer_grad, rule_grad,
                                          nullptr,             cost_grad,  reference_grad};

Value balance_loss(Graph& g, Value plain, Value mean_score, Value scale, double coefficient,
                   const std::string& name) {
  return g.add(kBalanceLoss, {plain, mean_score, scale}, {{"coefficient", coefficient}}, name);
}

}  // namespace moetrain::ops
