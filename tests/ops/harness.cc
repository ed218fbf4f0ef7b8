// Running an operator on given content, and the questions about types, gradients, linearity, cost.
#include "harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "base/text.h"
#include "compile/shard/rule.h"
#include "ops/basic.h"

namespace moetrain::test {

Type f32(Shape shape) { return {DType::kF32, std::move(shape)}; }
Type i32(Shape shape) { return {DType::kI32, std::move(shape)}; }

Operand normal(const std::string& tag, Shape shape, DType dtype) {
  const CounterRandom random(7, tag);
  Operand operand{{dtype, shape}, std::vector<double>(numel(shape))};
  for (size_t i = 0; i < operand.values.size(); ++i) operand.values[i] = random.normal(i);
  return operand;
}

Operand positive(const std::string& tag, Shape shape) {
  Operand operand = normal(tag, std::move(shape));
  for (double& v : operand.values) v = 0.3 + std::abs(v);
  return operand;
}

Operand filled(Shape shape, std::vector<double> values, DType dtype) {
  return {{dtype, std::move(shape)}, std::move(values)};
}

Operand integers(Shape shape, std::vector<double> values, DType dtype) {
  return {{dtype, std::move(shape)}, std::move(values)};
}

Operand ragged(const std::string& tag, int64_t experts, int64_t capacity, int64_t rows,
               int64_t width) {
  Operand operand = normal(tag, {rows, width});
  operand.type = {DType::kF32, {experts, capacity, width}, true};
  operand.rows = rows;
  return operand;
}

HostTensor to_host(const Operand& operand) {
  Shape shape = operand.type.shape;
  if (operand.type.ragged) {
    shape.erase(shape.begin());
    shape[0] = operand.rows;
  }
  const DType dtype = is_float(operand.type.dtype) ? DType::kF64 : operand.type.dtype;
  HostTensor tensor = make_host_tensor(dtype, shape);
  EXPECT_EQ(tensor.view().numel(), static_cast<int64_t>(operand.values.size()));
  for (size_t i = 0; i < operand.values.size(); ++i) {
    set_element(tensor.view(), static_cast<int64_t>(i), operand.values[i]);
  }
  return tensor;
}

std::vector<double> values_of(const HostTensor& tensor) {
  std::vector<double> values(numel(tensor.shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = get_element(tensor.view(), static_cast<int64_t>(i));
  }
  return values;
}

namespace {

Value feed(Graph& graph, const std::string& name, const Operand& operand) {
  return graph.add(ops::kInput, {},
                   {{"dtype", std::string(name_of(operand.type.dtype))},
                    {"shape", operand.type.shape},
                    {"ragged", int64_t{operand.type.ragged}}},
                   name);
}

std::string operand_name(size_t i) { return cat("operand", i); }

}  // namespace

std::vector<Result> run(const OpDef& op, const Attrs& attrs, const std::vector<Operand>& operands,
                        bool in_double) {
  Graph graph;
  std::vector<Value> inputs;
  std::map<std::string, HostTensor> feeds;
  for (size_t i = 0; i < operands.size(); ++i) {
    inputs.push_back(feed(graph, operand_name(i), operands[i]));
    feeds[operand_name(i)] = to_host(operands[i]);
  }
  const int node = graph.append(op, inputs, attrs, "op");
  const size_t count = graph.nodes[node].outputs.size();
  for (size_t o = 0; o < count; ++o) graph.mark_output(cat(o), {node, static_cast<int>(o)});
  auto found = interpret(graph, feeds, {.in_double = in_double});
  std::vector<Result> results;
  for (size_t o = 0; o < count; ++o) {
    results.push_back({found[cat(o)].shape, values_of(found[cat(o)])});
  }
  return results;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 0, gap = 0;
  size_t at = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= gap)) {
      gap = d;
      at = i;
    }
  }
  EXPECT_LE(gap, tolerance * (1 + largest))
      << what << ": element " << at << " is " << a[at] << ", expected " << b[at];
}

void check_types(const OpCase& c) {
  std::vector<Type> inputs;
  for (const Operand& operand : c.operands) inputs.push_back(operand.type);
  const std::vector<Type> types = c.op->infer(c.attrs, inputs);
  ASSERT_EQ(types.size(), c.results.size());
  for (size_t o = 0; o < types.size(); ++o) {
    EXPECT_EQ(to_string(types[o]), to_string(c.results[o])) << "result " << o;
  }
}

// Projects the outputs on random cotangents R: L(x) = sum <R, op(x)>, and compares dL/dx of the vjp
// with central differences, element by element.
void check_gradient(const OpCase& c) {
  if (c.gradient_of.empty()) {
    return;
  }
  ASSERT_NE(c.op->vjp, nullptr);
  Graph graph;
  std::vector<Value> inputs;
  std::map<std::string, HostTensor> feeds;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    inputs.push_back(feed(graph, operand_name(i), c.operands[i]));
    feeds[operand_name(i)] = to_host(c.operands[i]);
  }
  const int node = graph.append(*c.op, inputs, c.attrs, "op");
  const std::vector<Result> forward = run(*c.op, c.attrs, c.operands);
  std::vector<Value> cotangents(forward.size());
  std::vector<std::vector<double>> weights(forward.size());
  for (int o : c.gradient_of) {
    const Type type = graph.nodes[node].outputs[o];
    if (c.constant_cotangent) {
      cotangents[o] = ops::constant(graph, 1.0, type.dtype, type.shape);
      weights[o] = {1.0};
      continue;
    }
    Operand r = normal(cat("cotangent", o), forward[o].shape);
    r.type = type;
    r.rows = type.ragged ? forward[o].shape[0] : -1;
    weights[o] = r.values;
    const std::string name = cat("cotangent", o);
    cotangents[o] = feed(graph, name, r);
    feeds[name] = to_host(r);
  }
  const std::vector<Value> grads = c.op->vjp(graph, node, cotangents);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].valid()) continue;
    EXPECT_EQ(graph.type(grads[i]).shape, c.operands[i].type.shape) << "gradient " << i;
    graph.mark_output(cat("grad", i), grads[i]);
  }
  verify(graph);
  auto found = interpret(graph, feeds);

  auto loss = [&](const std::vector<Operand>& operands) {
    const std::vector<Result> results = run(*c.op, c.attrs, operands);
    double sum = 0;
    for (int o : c.gradient_of) {
      for (size_t e = 0; e < weights[o].size(); ++e) sum += weights[o][e] * results[o].values[e];
    }
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const bool given = i < grads.size() && grads[i].valid();
    const bool excused =
        std::find(c.no_gradient.begin(), c.no_gradient.end(), static_cast<int>(i)) !=
        c.no_gradient.end();
    const bool wanted = is_float(c.operands[i].type.dtype) && !excused;
    ASSERT_EQ(given, wanted) << "gradient of operand " << i;
    if (!given) continue;
    std::vector<Operand> moved = c.operands;
    std::vector<double> expected(moved[i].values.size());
    for (size_t e = 0; e < expected.size(); ++e) {
      const double x = moved[i].values[e];
      moved[i].values[e] = x + kStep;
      const double up = loss(moved);
      moved[i].values[e] = x - kStep;
      expected[e] = (up - loss(moved)) / (2 * kStep);
      moved[i].values[e] = x;
    }
    expect_near(values_of(found[cat("grad", i)]), expected, 1e-7, cat("gradient of operand ", i));
  }
}

Rule rule_for(const OpCase& c) {
  std::vector<Type> types;
  std::vector<size_t> ranks;
  for (const Operand& operand : c.operands) {
    types.push_back(operand.type);
    ranks.push_back(operand.type.shape.size());
  }
  return parse_rule(c.op->rule(c.attrs, types), ranks);
}

void check_linear_clauses(const OpCase& c) {
  const Rule rule = rule_for(c);
  constexpr double kA = 1.7, kB = -0.6;
  const std::vector<Result> at_x = run(*c.op, c.attrs, c.operands);
  for (const std::vector<int>& group : rule.linear) {
    std::vector<Operand> y = c.operands, mixed = c.operands;
    bool counts = false;  // sums of integers are linear, but not over real factors
    for (int i : group) {
      counts = counts || y[i].type.dtype == DType::kI64;
      EXPECT_NE(y[i].type.dtype, DType::kI32) << "linear in indices, operand " << i;
      const CounterRandom random(11, cat("linear", i));
      for (size_t e = 0; e < y[i].values.size(); ++e) {
        y[i].values[e] = random.normal(e);
        mixed[i].values[e] = kA * c.operands[i].values[e] + kB * y[i].values[e];
      }
    }
    if (counts) continue;
    const std::vector<Result> at_y = run(*c.op, c.attrs, y), at_mixed = run(*c.op, c.attrs, mixed);
    for (size_t o = 0; o < at_x.size(); ++o) {
      std::vector<double> expected(at_x[o].values.size());
      for (size_t e = 0; e < expected.size(); ++e) {
        expected[e] = kA * at_x[o].values[e] + kB * at_y[o].values[e];
      }
      expect_near(at_mixed[o].values, expected, 1e-11,
                  cat("linear in operands ", join(group, ","), ", result ", o));
    }
  }
}

void check_cost(const OpCase& c) {
  std::vector<Type> inputs;
  for (const Operand& operand : c.operands) inputs.push_back(operand.type);
  const Cost cost = c.op->cost(c.attrs, inputs, c.results);
  EXPECT_DOUBLE_EQ(cost.matmul_flops, c.matmul_flops);
  const bool renames = c.op == &ops::kReshape;
  EXPECT_EQ(cost.bytes > 0, !renames);
  EXPECT_TRUE(std::isfinite(cost.bytes) && cost.vector_flops >= 0);
}

// The reference works in double and rounds once, so running it on float tensors must give exactly
// the double result on the rounded operands, rounded.
void check_storage_dtypes(const OpCase& c) {
  std::vector<DType> dtypes{DType::kF32};
  if (c.also_bf16) dtypes.push_back(DType::kBF16);
  for (DType dtype : dtypes) {
    std::vector<Operand> rounded = c.operands;
    for (Operand& operand : rounded) {
      if (!is_float(operand.type.dtype)) continue;
      if (operand.type.dtype == DType::kF32) operand.type.dtype = dtype;
      HostTensor store = make_host_tensor(operand.type.dtype, {1});
      for (double& v : operand.values) {
        set_element(store.view(), 0, v);
        v = get_element(store.view(), 0);
      }
    }
    std::vector<Type> types;
    for (const Operand& operand : rounded) types.push_back(operand.type);
    const std::vector<Type> results = c.op->infer(c.attrs, types);
    const std::vector<Result> expected = run(*c.op, c.attrs, rounded, true);
    const std::vector<Result> actual = run(*c.op, c.attrs, rounded, false);
    for (size_t o = 0; o < expected.size(); ++o) {
      HostTensor store = make_host_tensor(results[o].dtype, {1});
      for (size_t e = 0; e < expected[o].values.size(); ++e) {
        set_element(store.view(), 0, expected[o].values[e]);
        ASSERT_EQ(actual[o].values[e], get_element(store.view(), 0))
            << name_of(dtype) << " result " << o << " element " << e;
      }
    }
  }
}

}  // namespace moetrain::test
