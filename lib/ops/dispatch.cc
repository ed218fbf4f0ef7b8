// Dispatch of token rows to experts, combine, and their gradients.
#include "ops/common.h"
#include "ops/experts.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

/// The dispatch plan as the reference loops read it.
struct Plan {
  std::vector<int64_t> data;
  int64_t experts = 0;
  int64_t rows() const { return data[experts]; }
  int64_t source(int64_t row) const { return data[experts + 1 + row]; }
};

Plan read_plan(const Attrs& attrs, const Tensor& plan, int64_t rows_given) {
  Plan p{load_integers(plan), attrs.integer("experts")};
  MT_CHECK(static_cast<int64_t>(p.data.size()) > p.experts && p.rows() == rows_given,
           "a dispatch plan of ", p.data.size(), " numbers with ", p.experts, " experts for ",
           rows_given, " rows");
  return p;
}

/// Row of every slot (token * K + slot), -1 where there is none.
std::vector<int64_t> row_of_slot(const Plan& plan, int64_t slots) {
  std::vector<int64_t> row(slots, -1);
  for (int64_t r = 0; r < plan.rows(); ++r) {
    MT_CHECK(plan.source(r) >= 0 && plan.source(r) < slots, "dispatch plan: row ", r,
             " comes from slot ", plan.source(r), " of ", slots);
    row[plan.source(r)] = r;
  }
  return row;
}

void check_slots(const char* op, const Type& idx, const Type& plan) {
  MT_CHECK(idx.shape.size() == 3 && idx.dtype == DType::kI32 && plan.dtype == DType::kI32 &&
               plan.shape.size() == 1,
           op, ": idx ", to_string(idx), ", plan ", to_string(plan));
}

void check_rows(const char* op, const Type& rows, const Attrs& attrs) {
  MT_CHECK(rows.ragged && rows.shape.size() == 3 && is_float(rows.dtype) &&
               rows.shape[0] == attrs.integer("experts"),
           op, ": rows ", to_string(rows), " of ", attrs.integer("experts"), " experts");
}

// ---- dispatch ----

std::vector<Type> infer_dispatch(const Attrs& attrs, Types inputs) {
  check_count("dispatch", inputs.size(), 2);
  const Type &x = inputs[0], &idx = inputs[1];
  MT_CHECK(x.shape.size() == 3 && idx.shape.size() == 3 && !x.ragged &&
               is_float(x.dtype) && idx.dtype == DType::kI32 && x.shape[0] == idx.shape[0] &&
               x.shape[1] == idx.shape[1],
           "dispatch: x ", to_string(x), ", idx ", to_string(idx));
  const int64_t experts = attrs.integer("experts"), slots = numel(idx.shape);
  MT_CHECK(experts > 0, "dispatch to ", experts, " experts");
  return {{x.dtype, {experts, slots, x.shape[2]}, true}, {DType::kI32, {experts + 1 + slots}}};
}

// t stands for the rows of an expert: split over whatever token axes (of b and s) e does not take.
// Rows are copies, so nothing is summed over b and s in spite of t being a letter of its own.
std::string rule_dispatch(const Attrs&, Types) { return "bsd,bsj->etd,p; local e; whole jp"; }

std::vector<Value> vjp_dispatch(Graph& graph, int node, std::span<const Value> dy) {
  MT_CHECK(dy[0].valid() && !dy[1].valid(), "dispatch: only rows have a gradient");
  const Node n = graph.nodes[node];
  return {graph.add(kDispatchGrad, {dy[0], {node, 1}, n.inputs[1]}, n.attrs, "grad"), {}};
}

Cost cost_rows(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 1);
}

void reference_dispatch(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t experts = attrs.integer("experts");
  const std::vector<int64_t> idx = load_integers(inputs[1]);
  const int64_t top_k = inputs[1].cols(), width = inputs[0].cols();
  std::vector<int64_t> next(experts + 1, 0);
  for (int64_t e : idx) {
    MT_CHECK(e < experts, "dispatch to expert ", e, " of ", experts);
    if (e >= 0) ++next[e + 1];
  }
  for (int64_t e = 0; e < experts; ++e) next[e + 1] += next[e];
  int32_t* plan = outputs[1].as<int32_t>();
  for (int64_t i = 0, n = outputs[1].numel(); i < n; ++i) plan[i] = -1;
  for (int64_t e = 0; e <= experts; ++e) plan[e] = static_cast<int32_t>(next[e]);
  MT_CHECK(outputs[0].rows() >= next[experts], "dispatch: ", next[experts], " rows for a buffer of ",
           outputs[0].rows());
  for (size_t slot = 0; slot < idx.size(); ++slot) {
    if (idx[slot] < 0) continue;
    const int64_t row = next[idx[slot]]++, token = static_cast<int64_t>(slot) / top_k;
    plan[experts + 1 + row] = static_cast<int32_t>(slot);
    for (int64_t c = 0; c < width; ++c) {
      set_element(outputs[0], row * width + c, get_element(inputs[0], token * width + c));
    }
  }
}

std::vector<Type> infer_dispatch_grad(const Attrs& attrs, Types inputs) {
  check_count("dispatch_grad", inputs.size(), 3);
  check_rows("dispatch_grad", inputs[0], attrs);
  check_slots("dispatch_grad", inputs[2], inputs[1]);
  return {{inputs[0].dtype,
           {inputs[2].shape[0], inputs[2].shape[1], inputs[0].shape[2]},
           inputs[2].ragged}};
}

std::string rule_dispatch_grad(const Attrs&, Types) {
  return "etd,p,bsj->bsd; local e; whole jp; linear 0";
}

void reference_dispatch_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t top_k = inputs[2].cols(), width = outputs[0].cols(), tokens = outputs[0].rows();
  const Plan plan = read_plan(attrs, inputs[1], inputs[0].shape[0]);
  const std::vector<int64_t> row = row_of_slot(plan, tokens * top_k);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
        if (row[k] >= 0) sum += get_element(inputs[0], row[k] * width + c);
      }
      set_element(outputs[0], t * width + c, sum);
    }
  }
}

// ---- combine ----

std::vector<Type> infer_combine(const Attrs& attrs, Types inputs) {
  check_count("combine", inputs.size(), 4);
  check_rows("combine", inputs[0], attrs);
  check_slots("combine", inputs[3], inputs[1]);
  MT_CHECK(inputs[2].shape == inputs[3].shape && is_float(inputs[2].dtype), "combine: weight ",
           to_string(inputs[2]), ", idx ", to_string(inputs[3]));
  return {{dtype_attr(attrs, inputs[0].dtype),
           {inputs[3].shape[0], inputs[3].shape[1], inputs[0].shape[2]},
           inputs[3].ragged}};
}

// Linear in the rows: a pending sum over tensor ranks may be finished after combining, on K times
// fewer rows.
std::string rule_combine(const Attrs&, Types) {
  return "etd,p,bsj,bsj->bsd; local e; whole jp; linear 0";
}

std::vector<Value> vjp_combine(Graph& graph, int node, std::span<const Value> dy) {
  const Node n = graph.nodes[node];
  const int grad = graph.append(
      kCombineGrad, {dy[0], n.inputs[1], n.inputs[2], n.inputs[3], n.inputs[0]}, n.attrs, "grad");
  return {{grad, 0}, {}, {grad, 1}, {}};
}

Cost cost_combine(const Attrs&, Types inputs, Types outputs) {
  return {0, 2.0 * static_cast<double>(elements(inputs[0])), bytes_of(inputs) + bytes_of(outputs)};
}

void reference_combine(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t top_k = inputs[3].cols(), width = outputs[0].cols(), tokens = outputs[0].rows();
  const Plan plan = read_plan(attrs, inputs[1], inputs[0].shape[0]);
  const std::vector<int64_t> row = row_of_slot(plan, tokens * top_k);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
        if (row[k] < 0) continue;
        sum += get_element(inputs[2], k) * get_element(inputs[0], row[k] * width + c);
      }
      set_element(outputs[0], t * width + c, sum);
    }
  }
}

std::vector<Type> infer_combine_grad(const Attrs& attrs, Types inputs) {
  check_count("combine_grad", inputs.size(), 5);
  check_rows("combine_grad", inputs[4], attrs);
  check_slots("combine_grad", inputs[3], inputs[1]);
  const Shape dy{inputs[3].shape[0], inputs[3].shape[1], inputs[4].shape[2]};
  MT_CHECK(inputs[0].shape == dy && is_float(inputs[0].dtype) &&
               inputs[2].shape == inputs[3].shape,
           "combine_grad: dy ", to_string(inputs[0]), ", weight ", to_string(inputs[2]), ", idx ",
           to_string(inputs[3]), ", rows ", to_string(inputs[4]));
  return {inputs[4], {DType::kF32, inputs[2].shape, inputs[2].ragged}};
}

// dweight contracts over d, so it is partial where d is split.
std::string rule_combine_grad(const Attrs&, Types) {
  return "bsd,p,bsj,bsj,etd->etd,bsj; local e; whole jp; linear 0";
}

Cost cost_combine_grad(const Attrs&, Types inputs, Types outputs) {
  return {0, 3.0 * static_cast<double>(elements(inputs[4])), bytes_of(inputs) + bytes_of(outputs)};
}

void reference_combine_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t top_k = inputs[3].cols(), width = inputs[0].cols(), tokens = inputs[0].rows();
  const Plan plan = read_plan(attrs, inputs[1], inputs[4].shape[0]);
  const std::vector<int64_t> row = row_of_slot(plan, tokens * top_k);
  for (int64_t k = 0; k < tokens * top_k; ++k) {
    double dot = 0;
    if (row[k] >= 0) {
      const double weight = get_element(inputs[2], k);
      for (int64_t c = 0; c < width; ++c) {
        const double d = get_element(inputs[0], k / top_k * width + c);
        dot += d * get_element(inputs[4], row[k] * width + c);
        set_element(outputs[0], row[k] * width + c, weight * d);
      }
    }
    set_element(outputs[1], k, dot);
  }
}

}  // namespace

constinit const OpDef kDispatch = {"dispatch",   infer_dispatch, rule_dispatch,
                                   vjp_dispatch, cost_rows,      reference_dispatch};
constinit const OpDef kDispatchGrad = {"dispatch_grad", infer_dispatch_grad, rule_dispatch_grad,
                                       nullptr,         cost_rows,           reference_dispatch_grad};
constinit const OpDef kCombine = {"combine",   infer_combine, rule_combine,
                                  vjp_combine, cost_combine,  reference_combine};
constinit const OpDef kCombineGrad = {"combine_grad", infer_combine_grad, rule_combine_grad,
                                      nullptr,        cost_combine_grad,  reference_combine_grad};

Dispatched dispatch(Graph& g, Value x, Value idx, int64_t experts, const std::string& name) {
  const int node = g.append(kDispatch, {x, idx}, {{"experts", experts}}, name);
  return {{node, 0}, {node, 1}};
}

Value combine(Graph& g, Value rows, Value plan, Value weight, Value idx, DType dtype,
              const std::string& name) {
  return g.add(kCombine, {rows, plan, weight, idx},
               {{"experts", g.type(rows).shape[0]}, {"dtype", dtype_value(dtype)}}, name);
}

}  // namespace moetrain::ops
