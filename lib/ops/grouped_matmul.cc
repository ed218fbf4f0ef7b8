// Grouped matrix products: every expert's ragged rows times that expert's weight, in three forms.
#include "ops/common.h"
#include "ops/experts.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

void check_rows_weight(const char* op, const Type& rows, const Type& w, const Type& plan,
                       int contracted) {
  MT_CHECK(rows.ragged && rows.shape.size() == 3 && w.shape.size() == 3 && !w.ragged &&
               rows.shape[0] == w.shape[0] && rows.shape[2] == w.shape[contracted] &&
               is_float(rows.dtype) && is_float(w.dtype) && plan.dtype == DType::kI32 &&
               plan.shape.size() == 1 && plan.shape[0] > w.shape[0],
           op, ": rows ", to_string(rows), ", w ", to_string(w), ", plan ", to_string(plan));
}

Cost product_cost(Types inputs, Types outputs, int64_t rows, int64_t n, int64_t k) {
  Cost cost;
  cost.matmul_flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k);
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

// ---- y = rows w^T ----

std::vector<Type> infer_grouped(const Attrs&, Types inputs) {
  check_count("grouped_matmul", inputs.size(), 3);
  check_rows_weight("grouped_matmul", inputs[0], inputs[1], inputs[2], 2);
  return {{inputs[0].dtype, {inputs[0].shape[0], inputs[0].shape[1], inputs[1].shape[1]}, true}};
}

std::string rule_grouped(const Attrs&, Types) { return "etk,enk,p->etn; whole p; linear 0|1"; }

std::vector<Value> vjp_grouped(Graph& graph, int node, std::span<const Value> dy) {
  const std::vector<Value> in = graph.nodes[node].inputs;
  return {graph.add(kGroupedMatmulDx, {dy[0], in[1], in[2]}, {}, "dx"),
          graph.add(kGroupedMatmulDw, {dy[0], in[0], in[2]}, {}, "dw"),
          {}};
}

Cost cost_grouped(const Attrs&, Types inputs, Types outputs) {
  return product_cost(inputs, outputs, inputs[0].shape[1], inputs[1].shape[1], inputs[1].shape[2]);
}

void reference_grouped(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> x = load(inputs[0]), w = load(inputs[1]);
  const int64_t experts = inputs[1].shape[0], n_out = inputs[1].shape[1], n_in = inputs[1].shape[2];
  for (int64_t e = 0; e < experts; ++e) {
    const RowRange range = expert_rows(inputs[2], e, inputs[0].shape[0]);
    for (int64_t r = range.begin; r < range.end; ++r) {
      for (int64_t n = 0; n < n_out; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < n_in; ++k) sum += x[r * n_in + k] * w[(e * n_out + n) * n_in + k];
        set_element(outputs[0], r * n_out + n, sum);
      }
    }
  }
}

// ---- dx = dy w ----

std::vector<Type> infer_dx(const Attrs&, Types inputs) {
  check_count("grouped_matmul_dx", inputs.size(), 3);
  check_rows_weight("grouped_matmul_dx", inputs[0], inputs[1], inputs[2], 1);
  return {{inputs[0].dtype, {inputs[0].shape[0], inputs[0].shape[1], inputs[1].shape[2]}, true}};
}

std::string rule_dx(const Attrs&, Types) { return "etn,enk,p->etk; whole p; linear 0|1"; }

void reference_dx(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), w = load(inputs[1]);
  const int64_t experts = inputs[1].shape[0], n_out = inputs[1].shape[1], n_in = inputs[1].shape[2];
  std::vector<double> dx(outputs[0].numel(), 0.0);
  for (int64_t e = 0; e < experts; ++e) {
    const RowRange range = expert_rows(inputs[2], e, inputs[0].shape[0]);
    for (int64_t r = range.begin; r < range.end; ++r) {
      for (int64_t n = 0; n < n_out; ++n) {
        const double d = dy[r * n_out + n];
        for (int64_t k = 0; k < n_in; ++k) dx[r * n_in + k] += d * w[(e * n_out + n) * n_in + k];
      }
    }
  }
  store(dx, outputs[0]);
}

// ---- dw = dy^T x per expert (+ acc) ----

std::vector<Type> infer_dw(const Attrs& attrs, Types inputs) {
  const bool accumulate = attrs.integer_or("accumulate", 0) != 0;
  check_count("grouped_matmul_dw (a fourth operand needs attribute accumulate=1)", inputs.size(),
              accumulate ? 4 : 3);
  const Type &dy = inputs[0], &x = inputs[1], &plan = inputs[2];
  MT_CHECK(dy.ragged && x.ragged && dy.shape.size() == 3 && x.shape.size() == 3 &&
               dy.shape[0] == x.shape[0] && dy.shape[1] == x.shape[1] && is_float(dy.dtype) &&
               is_float(x.dtype) && plan.dtype == DType::kI32 && plan.shape.size() == 1 &&
               plan.shape[0] > dy.shape[0],
           "grouped_matmul_dw: dy ", to_string(dy), ", x ", to_string(x), ", plan ",
           to_string(plan));
  const Type dw{DType::kF32, {dy.shape[0], dy.shape[2], x.shape[2]}};
  if (accumulate) {
    MT_CHECK(inputs[3] == dw, "grouped_matmul_dw: acc ", to_string(inputs[3]), " for ",
             to_string(dw));
  }
  return {dw};
}

// The form with `acc` is made on local graphs, after partition (see matmul_dw).
std::string rule_dw(const Attrs&, Types inputs) {
  if (inputs.size() == 4) return "etn,etk,p,enk->enk; whole tp";
  return "etn,etk,p->enk; whole p; linear 0|1";
}

Cost cost_dw(const Attrs&, Types inputs, Types outputs) {
  return product_cost(inputs, outputs, inputs[0].shape[1], outputs[0].shape[1],
                      outputs[0].shape[2]);
}

void reference_dw(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), x = load(inputs[1]);
  const int64_t experts = outputs[0].shape[0], n_out = outputs[0].shape[1];
  const int64_t n_in = outputs[0].shape[2];
  std::vector<double> dw(outputs[0].numel(), 0.0);
  for (int64_t e = 0; e < experts; ++e) {
    const RowRange range = expert_rows(inputs[2], e, inputs[0].shape[0]);
    for (int64_t r = range.begin; r < range.end; ++r) {
      for (int64_t n = 0; n < n_out; ++n) {
        const double d = dy[r * n_out + n];
        for (int64_t k = 0; k < n_in; ++k) dw[(e * n_out + n) * n_in + k] += d * x[r * n_in + k];
      }
    }
  }
  if (inputs.size() == 4) {
    for (size_t i = 0; i < dw.size(); ++i) dw[i] += get_element(inputs[3], static_cast<int64_t>(i));
  }
  store(dw, outputs[0]);
}

int alias_dw(const Attrs& attrs, int) { return attrs.integer_or("accumulate", 0) ? 3 : -1; }

}  // namespace

constinit const OpDef kGroupedMatmul = {"grouped_matmul", infer_grouped, rule_grouped,
                                        vjp_grouped,      cost_grouped,  reference_grouped};
constinit const OpDef kGroupedMatmulDx = {"grouped_matmul_dx", infer_dx,     rule_dx,
                                          nullptr,             cost_grouped, reference_dx};
constinit const OpDef kGroupedMatmulDw = {"grouped_matmul_dw", infer_dw,     rule_dw, nullptr,
                                          cost_dw,             reference_dw, alias_dw};

Value grouped_matmul(Graph& g, Value rows, Value w, Value plan, const std::string& name) {
  return g.add(kGroupedMatmul, {rows, w, plan}, {}, name);
}

}  // namespace moetrain::ops
