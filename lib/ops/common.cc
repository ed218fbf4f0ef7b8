// Shared helpers of the operator families.
#include "ops/common.h"

#include <cstring>

#include "ops/basic.h"

namespace moetrain::ops {

std::vector<double> load(const Tensor& tensor) {
  const int64_t n = tensor.numel();
  std::vector<double> values(n);
  if (tensor.dtype == DType::kF64) {
    if (n > 0) std::memcpy(values.data(), tensor.data, n * sizeof(double));
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = get_element(tensor, i);
  }
  return values;
}

std::vector<int64_t> load_integers(const Tensor& tensor) {
  const int64_t n = tensor.numel();
  std::vector<int64_t> values(n);
  if (tensor.dtype == DType::kI64) {
    if (n > 0) std::memcpy(values.data(), tensor.data, n * sizeof(int64_t));
  } else {
    MT_CHECK(tensor.dtype == DType::kI32, "an integer tensor is needed, not ",
             name_of(tensor.dtype));
    for (int64_t i = 0; i < n; ++i) values[i] = tensor.as<const int32_t>()[i];
  }
  return values;
}

void store(const std::vector<double>& values, const Tensor& tensor) {
  const int64_t n = tensor.numel();
  MT_CHECK(n == static_cast<int64_t>(values.size()), n, " elements in ", to_string(tensor.shape),
           ", ", values.size(), " values");
  for (int64_t i = 0; i < n; ++i) set_element(tensor, i, values[i]);
}

DType dtype_named(const std::string& name) {
  for (DType t : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
    if (name == name_of(t)) return t;
  }
  MT_CHECK(false, "no dtype '", name, "'");
  return DType::kF32;
}

DType dtype_attr(const Attrs& attrs, DType otherwise) {
  return attrs.has("dtype") ? dtype_named(attrs.text("dtype")) : otherwise;
}

AttrValue dtype_value(DType dtype) { return std::string(name_of(dtype)); }

int64_t elements(const Type& type) {
  const int64_t all = numel(type.shape);
  return type.ragged && type.shape[0] > 0 ? all / type.shape[0] : all;
}

double bytes_of(std::span<const Type> types) {
  double bytes = 0;
  for (const Type& t : types) bytes += static_cast<double>(elements(t)) * size_of(t.dtype);
  return bytes;
}

Cost streaming_cost(std::span<const Type> inputs, std::span<const Type> outputs, double flops) {
  Cost cost;
  cost.vector_flops = flops * static_cast<double>(elements(outputs[0]));
  cost.bytes = bytes_of(inputs) + bytes_of(outputs);
  return cost;
}

Cost moving_cost(const Attrs&, std::span<const Type> inputs, std::span<const Type> outputs) {
  return {0, 0, bytes_of(inputs) + bytes_of(outputs)};
}

std::string no_rule(const Attrs&, std::span<const Type>) { return ""; }

std::string lead_letters(size_t n) {
  constexpr std::string_view kLetters = "bshijl";
  MT_CHECK(n <= kLetters.size(), n, " leading dims are too many");
  return std::string(kLetters.substr(0, n));
}

std::string plain_letters(size_t n) {
  MT_CHECK(n <= 20, n, " dims are too many");
  std::string letters;
  for (size_t i = 0; i < n; ++i) letters += static_cast<char>('a' + i);
  return letters;
}

std::string elementwise_rule(size_t operands, size_t results) {
  std::string text;
  for (size_t i = 0; i < operands; ++i) text += i ? ",*" : "*";
  text += "->";
  for (size_t i = 0; i < results; ++i) text += i ? ",*" : "*";
  return text;
}

RowRange expert_rows(const Tensor& plan, int64_t e, int64_t rows) {
  const int32_t* offset = plan.as<const int32_t>();
  const RowRange range{offset[e], offset[e + 1]};
  MT_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= rows, "expert ", e,
           " has rows ", range.begin, " to ", range.end, " of ", rows);
  return range;
}

bool is_constant(const Graph& graph, Value v, double* value) {
  if (!v.valid() || graph.node(v).op != &kConstant) return false;
  *value = graph.node(v).attrs.real("value");
  return true;
}

Value zeros(Graph& graph, const Type& type) {
  MT_CHECK(!type.ragged, "a zero gradient of a ragged value");
  return constant(graph, 0.0, type.dtype, type.shape);
}

void check_float(const char* op, const Type& type) {
  MT_CHECK(is_float(type.dtype), op, ": a float tensor is needed, not ", to_string(type));
}

void check_count(const char* op, size_t actual, size_t expected) {
  MT_CHECK(actual == expected, op, ": ", actual, " operands, ", expected, " are needed");
}

}  // namespace moetrain::ops
