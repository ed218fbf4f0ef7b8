// Leaves and bookkeeping ops: inputs, states, constants, reshape, cast, scale, sums, split, concatenate.
#include "ops/basic.h"

#include <algorithm>
#include <span>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

// ---- leaves ----

std::vector<Type> infer_leaf(const Attrs& attrs, Types inputs) {
  check_count("leaf", inputs.size(), 0);
  for (int64_t d : attrs.integers("shape")) MT_CHECK(d >= 0, "a leaf with a negative dim");
  return {{dtype_attr(attrs, DType::kF32), attrs.integers("shape"),
           attrs.integer_or("ragged", 0) != 0}};
}

std::string rule_leaf(const Attrs& attrs, Types) {
  return "->" + plain_letters(attrs.integers("shape").size());
}

Cost cost_leaf(const Attrs&, Types, Types outputs) {
  return {0, 0, bytes_of(outputs)};
}

void reference_constant(const Attrs& attrs, Tensors, std::span<Tensor> outputs) {
  const double value = attrs.real("value");
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) set_element(outputs[0], i, value);
}

// ---- reshape ----

std::vector<Type> infer_reshape(const Attrs& attrs, Types inputs) {
  check_count("reshape", inputs.size(), 1);
  const Shape& shape = attrs.integers("shape");
  MT_CHECK(!inputs[0].ragged, "reshape of a ragged value");
  MT_CHECK(numel(shape) == numel(inputs[0].shape), "reshape: ", to_string(inputs[0]), " to ",
           to_string(shape));
  return {{inputs[0].dtype, shape, false}};
}

std::string dim_text(const std::string& factors) {
  return factors.size() == 1 ? factors : "(" + factors + ")";
}

// Walks both shapes together and cuts the larger of the two current dims at the end of the smaller
// one: [2, 6, 4] -> [2, 3, 8] becomes a(bc)d->ab(cd). Where sizes do not divide, the rest of both
// shapes is never split.
std::string rule_reshape(const Attrs& attrs, Types inputs) {
  const Shape& from = inputs[0].shape;
  const Shape& to = attrs.integers("shape");
  std::vector<std::string> in(from.size()), out(to.size());
  std::string whole;
  char next = 'a';
  auto fresh = [&] {
    MT_CHECK(next <= 'z', "reshape with more than 26 factors");
    return next++;
  };
  size_t i = 0, j = 0;
  int64_t a = i < from.size() ? from[i] : 1, b = j < to.size() ? to[j] : 1;
  auto step = [&](size_t& at, const Shape& shape, int64_t& rest) {
    ++at;
    rest = at < shape.size() ? shape[at] : 1;
  };
  while (i < from.size() && j < to.size()) {
    const int64_t size = std::min(a, b);
    if (a == 1 && b != 1) {
      if (in[i].empty()) whole += in[i] = std::string(1, fresh());
      step(i, from, a);
      continue;
    }
    if (b == 1 && a != 1) {
      if (out[j].empty()) whole += out[j] = std::string(1, fresh());
      step(j, to, b);
      continue;
    }
    if (size == 0 || std::max(a, b) % size != 0) break;
    const char letter = fresh();
    in[i] += letter;
    out[j] += letter;
    a /= size;
    b /= size;
    if (a == 1) step(i, from, a);
    if (b == 1) step(j, to, b);
  }
  // A dim left half-way would mix split and whole factors: all its factors become whole.
  for (; i < from.size(); ++i) {
    in[i] += fresh();
    whole += in[i];
  }
  for (; j < to.size(); ++j) {
    out[j] += fresh();
    whole += out[j];
  }
  std::sort(whole.begin(), whole.end());
  whole.erase(std::unique(whole.begin(), whole.end()), whole.end());
  std::string text;
  for (const auto& f : in) text += dim_text(f);
  text += "->";
  for (const auto& f : out) text += dim_text(f);
  if (!whole.empty()) text += "; whole " + whole;
  return text + "; linear 0";
}

std::vector<Value> vjp_reshape(Graph& graph, int node, std::span<const Value> dy) {
  return {reshape(graph, dy[0], graph.type(graph.nodes[node].inputs[0]).shape)};
}

void reference_copy(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    set_element(outputs[0], i, get_element(inputs[0], i));
  }
}

int alias_first(const Attrs&, int) { return 0; }

Cost cost_nothing(const Attrs&, Types, Types) { return {}; }

// ---- cast, scale ----

std::vector<Type> infer_cast(const Attrs& attrs, Types inputs) {
  check_count("cast", inputs.size(), 1);
  return {{dtype_attr(attrs, inputs[0].dtype), inputs[0].shape, inputs[0].ragged}};
}

// Rounding a partial sum and summing afterwards is not rounding the sum: only widening is linear.
std::string rule_cast(const Attrs& attrs, Types inputs) {
  const DType to = dtype_attr(attrs, inputs[0].dtype);
  const bool widens = is_float(to) && size_of(to) >= size_of(inputs[0].dtype);
  return widens || to == inputs[0].dtype ? "*->*; linear 0" : "*->*";
}

std::vector<Value> vjp_cast(Graph& graph, int node, std::span<const Value> dy) {
  const DType from = graph.type(graph.nodes[node].inputs[0]).dtype;
  return {is_float(from) ? cast(graph, dy[0], from) : Value{}};
}

Cost cost_copy(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 1);
}

std::vector<Type> infer_scale(const Attrs& attrs, Types inputs) {
  check_count("scale", inputs.size(), 1);
  check_float("scale", inputs[0]);
  attrs.real("factor");
  return {inputs[0]};
}

std::string rule_scale(const Attrs&, Types) { return "*->*; linear 0"; }

std::vector<Value> vjp_scale(Graph& graph, int node, std::span<const Value> dy) {
  const double factor = graph.nodes[node].attrs.real("factor");
  double value = 0;
  if (is_constant(graph, dy[0], &value)) {
    const Type type = graph.type(dy[0]);
    return {constant(graph, factor * value, type.dtype, type.shape)};
  }
  return {scale(graph, dy[0], factor)};
}

void reference_scale(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double factor = attrs.real("factor");
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    set_element(outputs[0], i, factor * get_element(inputs[0], i));
  }
}

// ---- sums ----

constexpr size_t kMaxTerms = 10;  // one digit per operand in a rule's `linear` clause

/// Terms of several widths (a float32 residual stream and a bf16 branch) sum to the widest.
DType widest(Types inputs) {
  DType dtype = inputs[0].dtype;
  for (const Type& t : inputs) {
    if (size_of(t.dtype) > size_of(dtype)) dtype = t.dtype;
  }
  return dtype;
}

std::vector<Type> infer_sum(const Attrs&, Types inputs) {
  MT_CHECK(!inputs.empty() && inputs.size() <= kMaxTerms, "a sum of ", inputs.size(), " terms");
  for (const Type& t : inputs) {
    MT_CHECK(t.shape == inputs[0].shape && t.ragged == inputs[0].ragged, "a sum of ",
             to_string(inputs[0]), " and ", to_string(t));
  }
  return {{widest(inputs), inputs[0].shape, inputs[0].ragged}};
}

std::vector<Type> infer_add(const Attrs& attrs, Types inputs) {
  check_count("add", inputs.size(), 2);
  return infer_sum(attrs, inputs);
}

std::string jointly_linear(size_t operands) {
  std::string text = "; linear ";
  for (size_t i = 0; i < operands; ++i) text += static_cast<char>('0' + i);
  return text;
}

std::string rule_sum(const Attrs&, Types inputs) {
  return elementwise_rule(inputs.size(), 1) + jointly_linear(inputs.size());
}

std::vector<Value> vjp_sum(Graph& graph, int node, std::span<const Value> dy) {
  std::vector<Value> grads;
  const std::vector<Value> inputs = graph.nodes[node].inputs;
  for (Value v : inputs) grads.push_back(cast(graph, dy[0], graph.type(v).dtype));
  return grads;
}

Cost cost_sum(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, static_cast<double>(inputs.size()) - 1);
}

void reference_sum(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    double sum = get_element(inputs[0], i);
    for (size_t t = 1; t < inputs.size(); ++t) sum += get_element(inputs[t], i);
    set_element(outputs[0], i, sum);
  }
}

// ---- split, concat ----

std::vector<Type> infer_split(const Attrs& attrs, Types inputs) {
  check_count("split", inputs.size(), 1);
  MT_CHECK(!inputs[0].shape.empty(), "split of a scalar");
  std::vector<Type> types;
  int64_t total = 0;
  for (int64_t size : attrs.integers("sizes")) {
    types.push_back(inputs[0]);
    types.back().shape.back() = size;
    total += size;
  }
  MT_CHECK(total == inputs[0].shape.back(), "split: sizes sum to ", total, " for ",
           to_string(inputs[0]));
  return types;
}

// Leading letters, then private upper-case letters for the last dims of the parts.
std::string lead_of(const Type& type) { return lead_letters(type.shape.size() - 1); }

std::string part_letters(size_t parts) {
  MT_CHECK(parts < 26, parts, " parts of the last dim are too many");
  std::string letters;
  for (size_t i = 0; i < parts; ++i) letters += static_cast<char>('A' + i);
  return letters;
}

std::string parts_text(const std::string& lead, const std::string& parts) {
  std::string text;
  for (char part : parts) text += (text.empty() ? "" : ",") + lead + part;
  return text;
}

std::string rule_split(const Attrs& attrs, Types inputs) {
  const std::string lead = lead_of(inputs[0]);
  const std::string parts = part_letters(attrs.integers("sizes").size());
  return lead + "Z->" + parts_text(lead, parts) + "; whole " + parts + "Z; linear 0";
}

std::vector<Value> vjp_split(Graph& graph, int node, std::span<const Value> dy) {
  const std::vector<Type> types = graph.nodes[node].outputs;
  const DType dtype = graph.type(*std::find_if(dy.begin(), dy.end(), [](Value v) {
                             return v.valid();
                           })).dtype;
  std::vector<Value> parts;
  for (size_t i = 0; i < types.size(); ++i) {
    Type type = types[i];
    type.dtype = dtype;
    parts.push_back(dy[i].valid() ? cast(graph, dy[i], dtype) : zeros(graph, type));
  }
  return {concat(graph, parts, "dx")};
}

void reference_split(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t width = inputs[0].cols();
  int64_t begin = 0;
  for (const Tensor& part : outputs) {
    const int64_t rows = part.rows(), cols = part.cols();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        set_element(part, r * cols + c, get_element(inputs[0], r * width + begin + c));
      }
    }
    begin += cols;
  }
}

std::vector<Type> infer_concat(const Attrs&, Types inputs) {
  MT_CHECK(!inputs.empty() && inputs.size() <= kMaxTerms, "concat of ", inputs.size(), " parts");
  Type type = inputs[0];
  MT_CHECK(!type.shape.empty(), "concat of scalars");
  type.shape.back() = 0;
  for (const Type& t : inputs) {
    Type other = t;
    MT_CHECK(!other.shape.empty(), "concat of scalars");
    type.shape.back() += other.shape.back();
    other.shape.back() = inputs[0].shape.back();
    MT_CHECK(other == inputs[0], "concat of ", to_string(inputs[0]), " and ", to_string(t));
  }
  return {type};
}

std::string rule_concat(const Attrs&, Types inputs) {
  const std::string lead = lead_of(inputs[0]);
  const std::string parts = part_letters(inputs.size());
  return parts_text(lead, parts) + "->" + lead + "Z; whole " + parts + "Z" +
         jointly_linear(inputs.size());
}

std::vector<Value> vjp_concat(Graph& graph, int node, std::span<const Value> dy) {
  std::vector<int64_t> sizes;
  for (Value v : graph.nodes[node].inputs) sizes.push_back(graph.type(v).shape.back());
  return split(graph, dy[0], sizes, "dx");
}

void reference_concat(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t width = outputs[0].cols();
  int64_t begin = 0;
  for (const Tensor& part : inputs) {
    const int64_t rows = part.rows(), cols = part.cols();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        set_element(outputs[0], r * width + begin + c, get_element(part, r * cols + c));
      }
    }
    begin += cols;
  }
}

}  // namespace

constinit const OpDef kInput = {"input", infer_leaf, rule_leaf, nullptr, cost_leaf, nullptr};
constinit const OpDef kState = {"state", infer_leaf, rule_leaf, nullptr, cost_leaf, nullptr};
constinit const OpDef kConstant = {"constant", infer_leaf, rule_leaf,
                                   nullptr,    cost_leaf,  reference_constant};
constinit const OpDef kReshape = {"reshape",    infer_reshape,  rule_reshape, vjp_reshape,
                                  cost_nothing, reference_copy, alias_first};
constinit const OpDef kCast = {"cast", infer_cast, rule_cast, vjp_cast, cost_copy, reference_copy};
constinit const OpDef kScale = {"scale",   infer_scale, rule_scale,
                                vjp_scale, cost_copy,   reference_scale};
constinit const OpDef kAdd = {"add", infer_add, rule_sum, vjp_sum, cost_sum, reference_sum};
constinit const OpDef kAddN = {"add_n", infer_sum, rule_sum, vjp_sum, cost_sum, reference_sum};
constinit const OpDef kSplit = {"split",   infer_split, rule_split,
                                vjp_split, cost_copy,   reference_split};
constinit const OpDef kConcat = {"concat",   infer_concat, rule_concat,
                                 vjp_concat, cost_copy,    reference_concat};

Value input(Graph& g, const std::string& name, DType dtype, Shape shape) {
  return g.add(kInput, {}, {{"dtype", dtype_value(dtype)}, {"shape", std::move(shape)}}, name);
}

Value state(Graph& g, const std::string& name, DType dtype, Shape shape) {
  return g.add(kState, {}, {{"dtype", dtype_value(dtype)}, {"shape", std::move(shape)}}, name);
}

Value constant(Graph& g, double value, DType dtype, Shape shape) {
  return g.add(kConstant, {},
               {{"dtype", dtype_value(dtype)}, {"shape", std::move(shape)}, {"value", value}});
}

Value reshape(Graph& g, Value x, Shape shape) {
  if (g.type(x).shape == shape && !g.type(x).ragged) return x;
  return g.add(kReshape, {x}, {{"shape", std::move(shape)}});
}

Value cast(Graph& g, Value x, DType dtype, const std::string& name) {
  if (g.type(x).dtype == dtype) return x;
  return g.add(kCast, {x}, {{"dtype", dtype_value(dtype)}}, name);
}

Value scale(Graph& g, Value x, double factor) { return g.add(kScale, {x}, {{"factor", factor}}); }

Value add(Graph& g, Value a, Value b, const std::string& name) {
  return g.add(kAdd, {a, b}, {}, name);
}

Value add_n(Graph& g, const std::vector<Value>& terms, const std::string& name) {
  MT_CHECK(!terms.empty(), "a sum of nothing");
  Value sum = terms[0];
  for (size_t next = 1; next < terms.size();) {
    std::vector<Value> some{sum};
    while (some.size() < kMaxTerms && next < terms.size()) some.push_back(terms[next++]);
    sum = g.add(kAddN, some, {}, name);
  }
  return sum;
}

std::vector<Value> split(Graph& g, Value x, const std::vector<int64_t>& sizes,
                         const std::string& name) {
  const int node = g.append(kSplit, {x}, {{"sizes", sizes}}, name);
  std::vector<Value> parts;
  for (size_t i = 0; i < sizes.size(); ++i) parts.push_back({node, static_cast<int>(i)});
  return parts;
}

Value concat(Graph& g, const std::vector<Value>& parts, const std::string& name) {
  return parts.size() == 1 ? parts[0] : g.add(kConcat, parts, {}, name);
}

}  // namespace moetrain::ops
