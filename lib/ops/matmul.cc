// Dense matrix products: y = x w^T, dx = dy w, dw = dy^T x. Weights are [out, in].
#include "ops/matmul.h"

#include "ops/basic.h"
#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

Shape with_last(Shape shape, int64_t last) {
  shape.back() = last;
  return shape;
}

std::string lead_of(const Type& type) { return lead_letters(type.shape.size() - 1); }

double rows_of(const Type& type) {
  return static_cast<double>(numel(type.shape)) / static_cast<double>(type.shape.back());
}

// ---- y = x w^T ----

std::vector<Type> infer_matmul(const Attrs& attrs, Types inputs) {
  check_count("matmul", inputs.size(), 2);
  const Type &x = inputs[0], &w = inputs[1];
  MT_CHECK(!x.ragged && !x.shape.empty() && w.shape.size() == 2 &&
               x.shape.back() == w.shape[1] && is_float(x.dtype) && x.dtype == w.dtype,
           "matmul: x ", to_string(x), ", w ", to_string(w));
  return {{dtype_attr(attrs, x.dtype), with_last(x.shape, w.shape[0])}};
}

std::string rule_matmul(const Attrs&, Types inputs) {
  const std::string lead = lead_of(inputs[0]);
  return lead + "k,nk->" + lead + "n; linear 0|1";
}

std::vector<Value> vjp_matmul(Graph& graph, int node, std::span<const Value> dy) {
  const Value x = graph.nodes[node].inputs[0], w = graph.nodes[node].inputs[1];
  // Both operands of a product share one dtype, so a wider result's gradient is rounded once here.
  const Value d = cast(graph, dy[0], graph.type(x).dtype);
  return {graph.add(kMatmulDx, {d, w}, {}, "dx"), graph.add(kMatmulDw, {d, x}, {}, "dw")};
}

Cost cost_matmul(const Attrs&, Types inputs, Types outputs) {
  Cost cost;
  cost.matmul_flops =
      2.0 * rows_of(inputs[0]) * static_cast<double>(inputs[1].shape[0] * inputs[1].shape[1]);
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

void reference_matmul(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> x = load(inputs[0]), w = load(inputs[1]);
  const int64_t n_out = inputs[1].shape[0], n_in = inputs[1].shape[1];
  const int64_t rows = outputs[0].rows();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < n_out; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < n_in; ++k) sum += x[r * n_in + k] * w[n * n_in + k];
      set_element(outputs[0], r * n_out + n, sum);
    }
  }
}

// ---- dx = dy w ----

std::vector<Type> infer_dx(const Attrs& attrs, Types inputs) {
  check_count("matmul_dx", inputs.size(), 2);
  const Type &dy = inputs[0], &w = inputs[1];
  MT_CHECK(!dy.ragged && !dy.shape.empty() && w.shape.size() == 2 &&
               dy.shape.back() == w.shape[0] && is_float(dy.dtype) && is_float(w.dtype),
           "matmul_dx: dy ", to_string(dy), ", w ", to_string(w));
  return {{dtype_attr(attrs, dy.dtype), with_last(dy.shape, w.shape[1])}};
}

std::string rule_dx(const Attrs&, Types inputs) {
  const std::string lead = lead_of(inputs[0]);
  return lead + "n,nk->" + lead + "k; linear 0|1";
}

void reference_dx(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), w = load(inputs[1]);
  const int64_t n_out = inputs[1].shape[0], n_in = inputs[1].shape[1];
  std::vector<double> dx(outputs[0].numel(), 0.0);
  for (int64_t r = 0, rows = outputs[0].rows(); r < rows; ++r) {
    for (int64_t n = 0; n < n_out; ++n) {
      const double d = dy[r * n_out + n];
      for (int64_t k = 0; k < n_in; ++k) dx[r * n_in + k] += d * w[n * n_in + k];
    }
  }
  store(dx, outputs[0]);
}

// ---- dw = dy^T x (+ acc) ----

std::vector<Type> infer_dw(const Attrs& attrs, Types inputs) {
  const bool accumulate = attrs.integer_or("accumulate", 0) != 0;
  check_count("matmul_dw (a third operand needs attribute accumulate=1)", inputs.size(),
              accumulate ? 3 : 2);
  const Type &dy = inputs[0], &x = inputs[1];
  MT_CHECK(!dy.ragged && !dy.shape.empty() && is_float(dy.dtype) && is_float(x.dtype) &&
               dy.shape.size() == x.shape.size() &&
               with_last(dy.shape, 0) == with_last(x.shape, 0),
           "matmul_dw: dy ", to_string(dy), ", x ", to_string(x));
  const Type dw{DType::kF32, {dy.shape.back(), x.shape.back()}};
  if (accumulate) {
    MT_CHECK(inputs[2] == dw, "matmul_dw: acc ", to_string(inputs[2]), " for ", to_string(dw));
  }
  return {dw};
}

// With `acc` the sum is complete on one rank only if acc is: the form with acc is made on local
// graphs, after partition, and claims no linearity.
std::string rule_dw(const Attrs&, Types inputs) {
  const std::string lead = lead_of(inputs[0]);
  if (inputs.size() == 3) return lead + "n," + lead + "k,nk->nk; whole " + lead;
  return lead + "n," + lead + "k->nk; linear 0|1";
}

Cost cost_dw(const Attrs&, Types inputs, Types outputs) {
  Cost cost;
  cost.matmul_flops =
      2.0 * rows_of(inputs[0]) * static_cast<double>(outputs[0].shape[0] * outputs[0].shape[1]);
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

void reference_dw(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), x = load(inputs[1]);
  const int64_t n_out = outputs[0].shape[0], n_in = outputs[0].shape[1];
  std::vector<double> dw(n_out * n_in, 0.0);
  for (int64_t r = 0, rows = inputs[0].rows(); r < rows; ++r) {
    for (int64_t n = 0; n < n_out; ++n) {
      const double d = dy[r * n_out + n];
      for (int64_t k = 0; k < n_in; ++k) dw[n * n_in + k] += d * x[r * n_in + k];
    }
  }
  if (inputs.size() == 3) {
    for (size_t i = 0; i < dw.size(); ++i) dw[i] += get_element(inputs[2], i);
  }
  store(dw, outputs[0]);
}

int alias_dw(const Attrs& attrs, int) { return attrs.integer_or("accumulate", 0) ? 2 : -1; }

}  // namespace

constinit const OpDef kMatmul = {"matmul",   infer_matmul, rule_matmul,
                                 vjp_matmul, cost_matmul,  reference_matmul};
constinit const OpDef kMatmulDx = {"matmul_dx", infer_dx,    rule_dx,
                                   nullptr,     cost_matmul, reference_dx};
constinit const OpDef kMatmulDw = {"matmul_dw", infer_dw,     rule_dw, nullptr,
                                   cost_dw,     reference_dw, alias_dw};

Value matmul(Graph& g, Value x, Value w, const std::string& name) {
  return g.add(kMatmul, {x, w}, {}, name);
}

}  // namespace moetrain::ops
