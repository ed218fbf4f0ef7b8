// Operators of the guide's examples that the model itself has no use for: ReLU and plain attention scores.
#pragma once

#include "base/error.h"
#include "graph/op.h"
#include "ops/basic.h"

namespace moetrain::test {

inline std::vector<Type> infer_relu(const Attrs&, std::span<const Type> in) { return {in[0]}; }
inline std::string rule_relu(const Attrs&, std::span<const Type>) { return "*->*"; }
inline Cost streaming(const Attrs&, std::span<const Type> in, std::span<const Type> out) {
  double bytes = 0;
  for (const auto& list : {in, out}) {
    for (const Type& t : list) bytes += 4.0 * static_cast<double>(numel(t.shape));
  }
  return {0, 0, bytes};
}
inline void reference_relu(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  for (int64_t i = 0; i < out[0].numel(); ++i) {
    const double x = get_element(in[0], i);
    set_element(out[0], i, x > 0 ? x : 0);
  }
}
inline std::string rule_relu_grad(const Attrs&, std::span<const Type>) { return "*,*->*; linear 0"; }
inline void reference_relu_grad(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  for (int64_t i = 0; i < out[0].numel(); ++i) {
    set_element(out[0], i, get_element(in[1], i) > 0 ? get_element(in[0], i) : 0);
  }
}
inline constexpr OpDef kReluGrad = {"relu_grad", infer_relu, rule_relu_grad,
                                    nullptr,     streaming,  reference_relu_grad};
inline std::vector<Value> vjp_relu(Graph& graph, int node, std::span<const Value> dy) {
  return {graph.add(kReluGrad, {dy[0], graph.nodes[node].inputs[0]}, {}, "grad")};
}
inline constexpr OpDef kRelu = {"relu", infer_relu, rule_relu, vjp_relu, streaming, reference_relu};

/// scores[b, s, t] = sum over h of q[b, s, h] k[b, h, t].
inline std::vector<Type> infer_scores(const Attrs&, std::span<const Type> in) {
  MT_CHECK(in[0].shape[2] == in[1].shape[1], "scores of ", to_string(in[0]), to_string(in[1]));
  return {{in[0].dtype, {in[0].shape[0], in[0].shape[1], in[1].shape[2]}}};
}
inline std::string rule_scores(const Attrs&, std::span<const Type>) {
  return "bsh,bht->bst; linear 0|1";
}
inline Cost cost_scores(const Attrs& attrs, std::span<const Type> in, std::span<const Type> out) {
  Cost cost = streaming(attrs, in, out);
  cost.matmul_flops = 2.0 * static_cast<double>(numel(out[0].shape) * in[0].shape[2]);
  return cost;
}
inline void reference_scores(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  const Shape &q = in[0].shape, &k = in[1].shape;
  for (int64_t i = 0; i < out[0].numel(); ++i) {
    const int64_t t = i % k[2], s = i / k[2] % q[1], b = i / (k[2] * q[1]);
    double sum = 0;
    for (int64_t h = 0; h < q[2]; ++h) {
      sum += get_element(in[0], (b * q[1] + s) * q[2] + h) *
             get_element(in[1], (b * q[2] + h) * k[2] + t);
    }
    set_element(out[0], i, sum);
  }
}
inline constexpr OpDef kScores = {"scores",    infer_scores, rule_scores,
                                  nullptr,     cost_scores,  reference_scores};

/// Sum of all elements, the loss of these examples (only ever differentiated with the seed one).
inline std::vector<Type> infer_total(const Attrs&, std::span<const Type>) { return {{DType::kF32, {}}}; }
inline std::string rule_total(const Attrs&, std::span<const Type>) { return "*->; linear 0"; }
inline std::vector<Value> vjp_total(Graph& graph, int node, std::span<const Value>) {
  const Type& type = graph.type(graph.nodes[node].inputs[0]);
  return {ops::constant(graph, 1.0, type.dtype, type.shape)};
}
inline void reference_total(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  double sum = 0;
  for (int64_t i = 0; i < in[0].numel(); ++i) sum += get_element(in[0], i);
  set_element(out[0], 0, sum);
}
inline constexpr OpDef kTotal = {"total",   infer_total, rule_total,
                                 vjp_total, streaming,   reference_total};

}  // namespace moetrain::test
