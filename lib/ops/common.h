// Small helpers every operator family uses: reading tensors as double, rule letters, costs, zero gradients.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// All elements as double / int64, whatever the dtype.
std::vector<double> load(const Tensor& tensor);
std::vector<int64_t> load_integers(const Tensor& tensor);
/// Writes `values` into `tensor`, rounded to its dtype. Sizes must agree.
void store(const std::vector<double>& values, const Tensor& tensor);

/// Attribute `dtype` (its short name as text), or `otherwise` when there is none.
DType dtype_attr(const Attrs& attrs, DType otherwise);
/// The value of attribute `dtype`.
AttrValue dtype_value(DType dtype);
DType dtype_named(const std::string& name);

/// Stored elements of a value; the rows of a ragged value count once, not once per expert.
int64_t elements(const Type& type);
double bytes_of(std::span<const Type> types);
/// Cost of an op that touches every element once with `flops` operations per element of output 0.
Cost streaming_cost(std::span<const Type> inputs, std::span<const Type> outputs, double flops);
/// Cost of an op that only moves its operands and results. An OpDef's `cost`.
Cost moving_cost(const Attrs& attrs, std::span<const Type> inputs, std::span<const Type> outputs);
/// "": the rule of ops that one rank's graph alone contains, so that nothing shards them. An OpDef's `rule`.
std::string no_rule(const Attrs& attrs, std::span<const Type> inputs);

/// The first `n` of the letters b, s, h, i, ...: leading dims of an activation.
std::string lead_letters(size_t n);
/// The first `n` of the letters a, b, c, ...: dims without a meaning of their own.
std::string plain_letters(size_t n);
/// "*,*->*" for `operands` operands and `results` results.
std::string elementwise_rule(size_t operands, size_t results);

/// Rows [begin, end) of expert `e` by a dispatch plan (experts.h), checked against `rows` in all.
struct RowRange {
  int64_t begin, end;
};
RowRange expert_rows(const Tensor& plan, int64_t e, int64_t rows);

/// Is `v` the output of a constant node? Then `value` receives what it is filled with.
bool is_constant(const Graph& graph, Value v, double* value);
/// A constant zero of this type (not ragged).
Value zeros(Graph& graph, const Type& type);

/// All inputs are float types of any width.
void check_float(const char* op, const Type& type);
void check_count(const char* op, size_t actual, size_t expected);

}  // namespace moetrain::ops
