// Output head and cross entropy in one op, with the gradients computed beside the loss.
#include "ops/vocab_loss.h"

#include <algorithm>
#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

bool with_gradient(const Attrs& attrs) { return attrs.integer_or("gradient", 0) != 0; }

std::vector<Type> infer_loss(const Attrs& attrs, Types inputs) {
  check_count("vocab_loss", inputs.size(), 5);
  const Type &x = inputs[0], &w = inputs[1], &labels = inputs[2], &valid = inputs[3];
  MT_CHECK(!x.shape.empty() && !x.ragged && is_float(x.dtype) && is_float(w.dtype) &&
               w.shape.size() == 2 && x.shape.back() == w.shape[1],
           "vocab_loss: x ", to_string(x), ", w ", to_string(w));
  const Shape tokens(x.shape.begin(), x.shape.end() - 1);
  MT_CHECK(labels == (Type{DType::kI32, tokens}) && valid.shape == tokens &&
               is_float(valid.dtype) && inputs[4].shape.empty() && is_float(inputs[4].dtype),
           "vocab_loss: labels ", to_string(labels), ", valid ", to_string(valid), ", scale ",
           to_string(inputs[4]));
  const Type scalar{DType::kF32, {}};
  if (!with_gradient(attrs)) return {scalar, scalar};
  return {scalar, scalar, x, {DType::kF32, w.shape}};
}

std::string rule_loss(const Attrs& attrs, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1);
  std::string text = lead + "d,vd," + lead + "," + lead + ",->,";
  if (with_gradient(attrs)) text += "," + lead + "d,vd";
  return text + "; local v; whole d";
}

std::vector<Value> vjp_loss(Graph& graph, int node, std::span<const Value> dy) {
  const Node& n = graph.nodes[node];
  MT_CHECK(with_gradient(n.attrs), "vocab_loss '", n.name, "' was built without its gradient");
  double one = 0;
  MT_CHECK(is_constant(graph, dy[0], &one) && one == 1.0 && !dy[1].valid(), "vocab_loss '", n.name,
           "' must enter the total loss with factor one: put factors into its scale operand");
  return {{node, 2}, {node, 3}, {}, {}, {}};
}

Cost cost_loss(const Attrs& attrs, Types inputs, Types outputs) {
  const double tokens = static_cast<double>(numel(inputs[2].shape));
  const double vocab = static_cast<double>(inputs[1].shape[0]);
  const double width = static_cast<double>(inputs[1].shape[1]);
  Cost cost;
  cost.matmul_flops = 2.0 * tokens * vocab * width * (with_gradient(attrs) ? 3 : 1);
  cost.vector_flops = tokens * vocab * 4;
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

// d loss / d logits[t, v] = scale valid[t] (softmax[t, v] - [v = label]).
void reference_loss(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const bool gradient = with_gradient(attrs);
  const std::vector<double> x = load(inputs[0]), w = load(inputs[1]), valid = load(inputs[3]);
  const std::vector<int64_t> labels = load_integers(inputs[2]);
  const double scale = get_element(inputs[4], 0);
  const int64_t vocab = inputs[1].shape[0], width = inputs[1].shape[1];
  const int64_t tokens = static_cast<int64_t>(labels.size());
  std::vector<double> dx(gradient ? tokens * width : 0, 0.0), dw(gradient ? vocab * width : 0, 0.0);
  std::vector<double> logits(vocab);
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (valid[t] == 0) continue;
    MT_CHECK(labels[t] >= 0 && labels[t] < vocab, "label ", labels[t], " of token ", t,
             " outside the vocabulary of ", vocab);
    for (int64_t v = 0; v < vocab; ++v) {
      double z = 0;
      for (int64_t c = 0; c < width; ++c) z += x[t * width + c] * w[v * width + c];
      logits[v] = z;
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (double z : logits) total += std::exp(z - largest);
    sum += valid[t] * (std::log(total) + largest - logits[labels[t]]);
    if (!gradient) continue;
    for (int64_t v = 0; v < vocab; ++v) {
      const double p = std::exp(logits[v] - largest) / total;
      const double d = scale * valid[t] * (p - (v == labels[t] ? 1.0 : 0.0));
      for (int64_t c = 0; c < width; ++c) {
        dx[t * width + c] += d * w[v * width + c];
        dw[v * width + c] += d * x[t * width + c];
      }
    }
  }
  set_element(outputs[0], 0, scale * sum);
  set_element(outputs[1], 0, sum);
  if (gradient) {
    store(dx, outputs[2]);
    store(dw, outputs[3]);
  }
}

}  // namespace

constinit const OpDef kVocabLoss = {"vocab_loss", infer_loss, rule_loss,
                                    vjp_loss,     cost_loss,  reference_loss};

VocabLoss vocab_loss(Graph& g, Value x, Value w, Value labels, Value valid, Value scale,
                     bool gradient, const std::string& name) {
  const int node = g.append(kVocabLoss, {x, w, labels, valid, scale},
                            {{"gradient", int64_t{gradient}}}, name);
  return {{node, 0}, {node, 1}};
}

}  // namespace moetrain::ops
