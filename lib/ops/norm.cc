// RMSNorm over the last dim, forward and backward.
#include "ops/norm.h"

#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

std::vector<Type> infer_norm(const Attrs& attrs, Types inputs) {
  check_count("rms_norm", inputs.size(), 2);
  const Type &x = inputs[0], &g = inputs[1];
  MT_CHECK(!x.ragged && !x.shape.empty() && is_float(x.dtype) && is_float(g.dtype) &&
               g.shape == Shape{x.shape.back()},
           "rms_norm: x ", to_string(x), ", gain ", to_string(g));
  attrs.real("eps");
  return {{dtype_attr(attrs, x.dtype), x.shape}, {DType::kF32, without_last(x.shape)}};
}

std::string rule_norm(const Attrs&, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1);
  return lead + "d,d->" + lead + "d," + lead + "; whole d";
}

std::vector<Value> vjp_norm(Graph& graph, int node, std::span<const Value> dy) {
  MT_CHECK(dy[0].valid() && !dy[1].valid(), "rms_norm: only y has a gradient");
  const Value x = graph.nodes[node].inputs[0], g = graph.nodes[node].inputs[1];
  const int grad = graph.append(kRmsNormGrad, {dy[0], x, g, {node, 1}}, {}, "grad");
  return {{grad, 0}, {grad, 1}};
}

Cost cost_norm(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 4);
}

void reference_norm(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double eps = attrs.real("eps");
  const std::vector<double> x = load(inputs[0]), g = load(inputs[1]);
  const int64_t rows = inputs[0].rows(), width = inputs[0].cols();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += x[r * width + c] * x[r * width + c];
    const double rstd = 1.0 / std::sqrt(sum / static_cast<double>(width) + eps);
    for (int64_t c = 0; c < width; ++c) {
      set_element(outputs[0], r * width + c, x[r * width + c] * rstd * g[c]);
    }
    set_element(outputs[1], r, rstd);
  }
}

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  check_count("rms_norm_grad", inputs.size(), 4);
  const Type &dy = inputs[0], &x = inputs[1], &g = inputs[2], &rstd = inputs[3];
  MT_CHECK(dy.shape == x.shape && !x.shape.empty() && is_float(dy.dtype) && is_float(x.dtype) &&
               g.shape == Shape{x.shape.back()} && rstd.shape == without_last(x.shape),
           "rms_norm_grad: dy ", to_string(dy), ", x ", to_string(x), ", gain ", to_string(g),
           ", rstd ", to_string(rstd));
  return {{dtype_attr(attrs, x.dtype), x.shape}, {DType::kF32, g.shape}};
}

std::string rule_grad(const Attrs&, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1);
  return lead + "d," + lead + "d,d," + lead + "->" + lead + "d,d; whole d; linear 0";
}

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 10);
}

// With h = x rstd: y = h g, dx = rstd (dy g - h mean(dy g h)), dg = sum over rows of dy h.
void reference_grad(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), x = load(inputs[1]), g = load(inputs[2]);
  const int64_t rows = inputs[1].rows(), width = inputs[1].cols();
  std::vector<double> dg(width, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = get_element(inputs[3], r);
    const double *d = &dy[r * width], *v = &x[r * width];
    double dot = 0;
    for (int64_t c = 0; c < width; ++c) dot += d[c] * g[c] * v[c] * rstd;
    dot /= static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) {
      const double h = v[c] * rstd;
      dg[c] += d[c] * h;
      set_element(outputs[0], r * width + c, rstd * (d[c] * g[c] - h * dot));
    }
  }
  store(dg, outputs[1]);
}

}  // namespace

constinit const OpDef kRmsNorm = {"rms_norm", infer_norm, rule_norm,
                                  vjp_norm,   cost_norm,  reference_norm};
constinit const OpDef kRmsNormGrad = {"rms_norm_grad", infer_grad, rule_grad,
                                      nullptr,         cost_grad,  reference_grad};

Value rms_norm(Graph& g, Value x, Value gain, double eps, DType dtype, const std::string& name) {
  return g.add(kRmsNorm, {x, gain}, {{"eps", eps}, {"dtype", dtype_value(dtype)}}, name);
}

}  // namespace moetrain::ops
