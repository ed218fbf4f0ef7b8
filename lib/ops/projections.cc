// Several products of one input as one op, forward and backward; activation and gather included.
#include "ops/projections.h"

#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

bool is_grouped(const Attrs& attrs) { return attrs.integer_or("grouped", 0) != 0; }
bool gathers(const Attrs& attrs) { return attrs.integer_or("gather", 0) != 0; }
bool accumulates(const Attrs& attrs) { return attrs.integer_or("accumulate", 0) != 0; }
bool has_act(const Attrs& attrs) { return attrs.has("act"); }
bool keeps(const Attrs& attrs) { return attrs.integer_or("keep", 1) != 0; }

Shape with_last(Shape shape, int64_t last) {
  shape.back() = last;
  return shape;
}

void check_plan(const char* op, const Type& plan, int64_t experts) {
  MT_CHECK(plan.dtype == DType::kI32 && plan.shape.size() == 1 && plan.shape[0] > experts, op, ": plan ",
           to_string(plan), " for ", experts, " experts");
}

/// Rows of expert e; all rows where there are no experts.
RowRange rows_of(const Tensor* plan, int64_t e, int64_t rows) {
  return plan ? expert_rows(*plan, e, rows) : RowRange{0, rows};
}

/// Row of x that row r of the products reads.
struct Source {
  const int32_t* slots = nullptr;  ///< null: r itself
  int64_t top_k = 1;
  int64_t operator()(int64_t r) const { return slots ? slots[r] / top_k : r; }
};
Source source_of(const Attrs& attrs, const Tensor* plan, int64_t experts) {
  if (!gathers(attrs)) return {};
  return {plan->as<const int32_t>() + experts + 1, attrs.integer("top_k")};
}

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

double rows_in(const Type& t) {
  return static_cast<double>(elements(t)) / static_cast<double>(t.shape.back());
}

/// Of products of every row of output 0 with all `weights` [.., n_i, k].
Cost products_cost(Types weights, Types inputs, Types outputs) {
  Cost cost;
  for (const Type& w : weights) {
    cost.matmul_flops += 2.0 * rows_in(outputs[0]) * static_cast<double>(w.shape.back()) *
                         static_cast<double>(w.shape[w.shape.size() - 2]);
  }
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

// ---- y_i = x w_i^T, hidden = silu(y_1) y_2 ----

std::vector<Type> infer_forward(const Attrs& attrs, Types inputs) {
  const ProjectionOperands at = projections_operands(attrs);
  const bool grouped = is_grouped(attrs), gather = gathers(attrs);
  check_count("projections", inputs.size(), 1 + at.count + (grouped ? 1 : 0) + (gather ? 1 : 0));
  const Type& x = inputs[0];
  MT_CHECK(at.count > 0 && is_float(x.dtype) && !x.shape.empty() && (gather || x.ragged == grouped) &&
               (!gather || grouped),
           "projections: x ", to_string(x));
  const DType dtype = dtype_attr(attrs, x.dtype);
  std::vector<Type> types;
  for (size_t i = 0; i < at.count; ++i) {
    const Type& w = inputs[at.weights + i];
    MT_CHECK(w.shape.size() == (grouped ? 3u : 2u) && !w.ragged && w.shape.back() == x.shape.back() &&
                 w.dtype == x.dtype,
             "projections: x ", to_string(x), ", w ", to_string(w));
    const int64_t n = w.shape[w.shape.size() - 2];
    if (gather)
      types.push_back({dtype, {w.shape[0], attrs.integer("capacity"), n}, true});
    else
      types.push_back({dtype, with_last(x.shape, n), x.ragged});
  }
  if (grouped) check_plan("projections", inputs[at.plan], inputs[at.weights].shape[0]);
  if (has_act(attrs)) {
    MT_CHECK(attrs.text("act") == "swiglu" && at.count == 2 && types[0] == types[1],
             "projections: activation of ", to_string(types[0]), " and ", to_string(types.back()));
    const Type hidden = types[0];
    if (!keeps(attrs)) types.clear();
    types.push_back(hidden);
  }
  return types;
}

Cost cost_forward(const Attrs& attrs, Types inputs, Types outputs) {
  const ProjectionOperands at = projections_operands(attrs);
  return products_cost(inputs.subspan(at.weights, at.count), inputs, outputs);
}

void reference_forward(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const ProjectionOperands at = projections_operands(attrs);
  const Tensor* plan = at.plan ? &inputs[at.plan] : nullptr;
  const Tensor& first = inputs[at.weights];
  const int64_t experts = plan ? first.shape[0] : 1, n_in = first.shape.back();
  const Source source = source_of(attrs, plan, experts);
  const std::vector<double> x = load(inputs[0]);
  std::vector<std::vector<double>> y(at.count);
  for (size_t i = 0; i < at.count; ++i) {
    const std::vector<double> w = load(inputs[at.weights + i]);
    const Shape& shape = inputs[at.weights + i].shape;
    const int64_t n_out = shape[shape.size() - 2], rows = outputs[0].rows();
    y[i].resize(rows * n_out);
    for (int64_t e = 0; e < experts; ++e) {
      const RowRange range = rows_of(plan, e, rows);
      for (int64_t r = range.begin; r < range.end; ++r) {
        const double* from = x.data() + source(r) * n_in;
        for (int64_t n = 0; n < n_out; ++n) {
          double sum = 0;
          for (int64_t k = 0; k < n_in; ++k) sum += from[k] * w[(e * n_out + n) * n_in + k];
          y[i][r * n_out + n] = sum;
        }
      }
    }
    if (keeps(attrs)) {
      store(y[i], outputs[i]);
      y[i] = load(outputs[i]);
    } else {
      store(y[i], outputs[0]);  // rounds as a kept one would be
      y[i] = load(outputs[0]);
    }
  }
  if (!has_act(attrs)) return;
  for (size_t i = 0; i < y[0].size(); ++i) y[0][i] *= sigmoid(y[0][i]) * y[1][i];
  store(y[0], outputs.back());
}

// ---- dx = sum of dy_i w_i ----

std::vector<Type> infer_dx(const Attrs& attrs, Types inputs) {
  const ProjectionOperands at = projections_dx_operands(attrs);
  const bool grouped = is_grouped(attrs);
  check_count("projections_dx", inputs.size(), 2 * at.count + (grouped ? 1 : 0));
  const Type &first = inputs[0], &w0 = inputs[at.weights];
  for (size_t i = 0; i < at.count; ++i) {
    const Type &dy = inputs[i], &w = inputs[at.weights + i];
    MT_CHECK(dy.ragged == grouped && dy.dtype == first.dtype && is_float(dy.dtype) && is_float(w.dtype) &&
                 w.dtype == w0.dtype && with_last(dy.shape, 0) == with_last(first.shape, 0) &&
                 w.shape.size() == (grouped ? 3u : 2u) && w.shape.back() == w0.shape.back() &&
                 w.shape[w.shape.size() - 2] == dy.shape.back(),
             "projections_dx: dy ", to_string(dy), ", w ", to_string(w));
  }
  if (grouped) check_plan("projections_dx", inputs[at.plan], w0.shape[0]);
  return {{dtype_attr(attrs, first.dtype), with_last(first.shape, w0.shape.back()), grouped}};
}

Cost cost_dx(const Attrs& attrs, Types inputs, Types outputs) {
  const ProjectionOperands at = projections_dx_operands(attrs);
  return products_cost(inputs.subspan(at.weights, at.count), inputs, outputs);
}

/// dx += dy w for the rows of every expert.
void add_dx(const Tensor& dy_tensor, const Tensor& w_tensor, const Tensor* plan, std::vector<double>& dx) {
  const std::vector<double> dy = load(dy_tensor), w = load(w_tensor);
  const int64_t n_in = w_tensor.shape.back(), n_out = w_tensor.shape[w_tensor.shape.size() - 2];
  const int64_t experts = plan ? w_tensor.shape[0] : 1;
  for (int64_t e = 0; e < experts; ++e) {
    const RowRange range = rows_of(plan, e, dy_tensor.rows());
    for (int64_t r = range.begin; r < range.end; ++r) {
      for (int64_t n = 0; n < n_out; ++n) {
        const double d = dy[r * n_out + n];
        for (int64_t k = 0; k < n_in; ++k) dx[r * n_in + k] += d * w[(e * n_out + n) * n_in + k];
      }
    }
  }
}

void reference_dx(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const ProjectionOperands at = projections_dx_operands(attrs);
  std::vector<double> dx(outputs[0].numel(), 0.0);
  for (size_t i = 0; i < at.count; ++i)
    add_dx(inputs[i], inputs[at.weights + i], at.plan ? &inputs[at.plan] : nullptr, dx);
  store(dx, outputs[0]);
}

// ---- dw_i = dy_i^T x (+ acc_i) ----

std::vector<Type> infer_dw(const Attrs& attrs, Types inputs) {
  const ProjectionOperands at = projections_dw_operands(attrs);
  const bool grouped = is_grouped(attrs), gather = gathers(attrs);
  check_count("projections_dw", inputs.size(),
              at.count + 1 + (grouped ? 1 : 0) + (at.acc ? at.count : 0));
  const Type& x = inputs[at.x];
  MT_CHECK(is_float(x.dtype) && (gather || x.ragged == grouped) && (!gather || grouped),
           "projections_dw: x ", to_string(x));
  std::vector<Type> types;
  for (size_t i = 0; i < at.count; ++i) {
    const Type& dy = inputs[i];
    MT_CHECK(dy.ragged == grouped && dy.dtype == x.dtype && !dy.shape.empty() &&
                 (gather || with_last(dy.shape, 0) == with_last(x.shape, 0)),
             "projections_dw: dy ", to_string(dy), ", x ", to_string(x));
    Shape shape{dy.shape.back(), x.shape.back()};
    if (grouped) shape.insert(shape.begin(), dy.shape[0]);
    types.push_back({DType::kF32, shape});
    if (at.acc) {
      MT_CHECK(inputs[at.acc + i] == types.back(), "projections_dw: acc ", to_string(inputs[at.acc + i]),
               " for ", to_string(types.back()));
    }
  }
  if (grouped) check_plan("projections_dw", inputs[at.plan], inputs[0].shape[0]);
  return types;
}

Cost cost_dw(const Attrs& attrs, Types inputs, Types outputs) {
  const ProjectionOperands at = projections_dw_operands(attrs);
  Cost cost;
  for (size_t i = 0; i < at.count; ++i) {
    cost.matmul_flops += 2.0 * rows_in(inputs[i]) * static_cast<double>(outputs[i].shape.back()) *
                         static_cast<double>(inputs[i].shape.back());
  }
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

void reference_dw(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const ProjectionOperands at = projections_dw_operands(attrs);
  const Tensor* plan = at.plan ? &inputs[at.plan] : nullptr;
  const std::vector<double> x = load(inputs[at.x]);
  const int64_t n_in = inputs[at.x].cols();
  for (size_t i = 0; i < at.count; ++i) {
    const std::vector<double> dy = load(inputs[i]);
    const int64_t n_out = inputs[i].cols(), experts = plan ? outputs[i].shape[0] : 1;
    const Source source = source_of(attrs, plan, experts);
    std::vector<double> dw(outputs[i].numel(), 0.0);
    for (int64_t e = 0; e < experts; ++e) {
      const RowRange range = rows_of(plan, e, inputs[i].rows());
      for (int64_t r = range.begin; r < range.end; ++r) {
        const double* from = x.data() + source(r) * n_in;
        for (int64_t n = 0; n < n_out; ++n) {
          const double d = dy[r * n_out + n];
          for (int64_t k = 0; k < n_in; ++k) dw[(e * n_out + n) * n_in + k] += d * from[k];
        }
      }
    }
    if (at.acc) {
      for (size_t k = 0; k < dw.size(); ++k)
        dw[k] += get_element(inputs[at.acc + i], static_cast<int64_t>(k));
    }
    store(dw, outputs[i]);
  }
}

int alias_dw(const Attrs& attrs, int output) {
  return accumulates(attrs) ? static_cast<int>(projections_dw_operands(attrs).acc) + output : -1;
}

// ---- dgate, dup of swiglu, for dh = dy w ----

std::vector<Type> infer_swiglu(const Attrs& attrs, Types inputs) {
  const bool grouped = is_grouped(attrs);
  check_count("matmul_dx_swiglu", inputs.size(), grouped ? 5 : 4);
  const Type &dy = inputs[0], &w = inputs[1], &gate = inputs[2];
  MT_CHECK(dy.ragged == grouped && w.shape.size() == (grouped ? 3u : 2u) && is_float(dy.dtype) &&
               is_float(w.dtype) && dy.shape.back() == w.shape[w.shape.size() - 2] && gate == inputs[3] &&
               gate.shape == with_last(dy.shape, w.shape.back()) && gate.ragged == grouped &&
               is_float(gate.dtype),
           "matmul_dx_swiglu: dy ", to_string(dy), ", w ", to_string(w), ", gate ", to_string(gate), ", up ",
           to_string(inputs[3]));
  if (grouped) check_plan("matmul_dx_swiglu", inputs[4], w.shape[0]);
  return {gate, gate};
}

Cost cost_swiglu(const Attrs&, Types inputs, Types outputs) {
  return products_cost(inputs.subspan(1, 1), inputs, outputs);
}

void reference_swiglu(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  std::vector<double> dh(outputs[0].numel(), 0.0), dup(outputs[0].numel());
  add_dx(inputs[0], inputs[1], is_grouped(attrs) ? &inputs[4] : nullptr, dh);
  for (size_t i = 0; i < dh.size(); ++i) {
    const double z = get_element(inputs[2], static_cast<int64_t>(i));
    const double up = get_element(inputs[3], static_cast<int64_t>(i)), s = sigmoid(z);
    dup[i] = dh[i] * z * s;
    dh[i] *= up * s * (1.0 + z * (1.0 - s));
  }
  store(dh, outputs[0]);
  store(dup, outputs[1]);
}

}  // namespace

ProjectionOperands projections_operands(const Attrs& attrs) {
  ProjectionOperands at;
  at.count = static_cast<size_t>(attrs.integer("count"));
  at.weights = 1;
  if (is_grouped(attrs)) at.plan = 1 + at.count;
  return at;
}

ProjectionOperands projections_dx_operands(const Attrs& attrs) {
  ProjectionOperands at;
  at.count = static_cast<size_t>(attrs.integer("count"));
  at.weights = at.count;
  if (is_grouped(attrs)) at.plan = 2 * at.count;
  return at;
}

ProjectionOperands projections_dw_operands(const Attrs& attrs) {
  ProjectionOperands at;
  at.count = static_cast<size_t>(attrs.integer("count"));
  at.x = at.count;
  if (is_grouped(attrs)) at.plan = at.x + 1;
  if (accumulates(attrs)) at.acc = at.x + (is_grouped(attrs) ? 2 : 1);
  return at;
}

const OpDef kProjections{"projections", infer_forward, no_rule, nullptr, cost_forward, reference_forward};
const OpDef kProjectionsDx{"projections_dx", infer_dx, no_rule, nullptr, cost_dx, reference_dx};
const OpDef kProjectionsDw{"projections_dw", infer_dw,     no_rule, nullptr,
                           cost_dw,          reference_dw, alias_dw};
const OpDef kMatmulDxSwiglu{"matmul_dx_swiglu", infer_swiglu, no_rule, nullptr, cost_swiglu,
                            reference_swiglu};

}  // namespace moetrain::ops
