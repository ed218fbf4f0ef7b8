// One table row per operator case, and the five questions every operator is asked.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "compile/shard/rule.h"
#include "graph/graph.h"
#include "graph/interpret.h"
#include "graph/op.h"

namespace moetrain::test {

/// One operand with its content. A ragged operand holds `rows` rows.
struct Operand {
  Type type;
  std::vector<double> values;
  int64_t rows = -1;
};

struct OpCase {
  std::string name;
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<Operand> operands;
  std::vector<Type> results;            ///< expected types
  std::vector<int> gradient_of = {};    ///< outputs with a cotangent; empty: no gradient check
  std::vector<int> no_gradient = {};    ///< float operands that get none by contract
  bool constant_cotangent = false;      ///< the cotangent is the constant one
  double matmul_flops = 0;              ///< expected exactly
  bool also_bf16 = false;               ///< run with bf16 operands too
};

/// How gtest shows a case.
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }

/// Deterministic operands; `tag` names the stream.
Operand normal(const std::string& tag, Shape shape, DType dtype = DType::kF32);
Operand positive(const std::string& tag, Shape shape);
Operand filled(Shape shape, std::vector<double> values, DType dtype = DType::kF32);
Operand integers(Shape shape, std::vector<double> values, DType dtype = DType::kI32);
Operand ragged(const std::string& tag, int64_t experts, int64_t capacity, int64_t rows,
               int64_t width);
Type f32(Shape shape);
Type i32(Shape shape);

/// All results of the op, in double (or in their own dtypes), as vectors with shapes.
struct Result {
  Shape shape;
  std::vector<double> values;
};
std::vector<Result> run(const OpDef& op, const Attrs& attrs, const std::vector<Operand>& operands,
                        bool in_double = true);

HostTensor to_host(const Operand& operand);
std::vector<double> values_of(const HostTensor& tensor);

/// Fails unless |a - b| <= tolerance (1 + max |b|) everywhere.
void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                 const std::string& what);
/// The sharding rule of a case, parsed.
Rule rule_for(const OpCase& c);

/// The questions; each reports failures through gtest.
void check_types(const OpCase& c);
void check_gradient(const OpCase& c);
void check_linear_clauses(const OpCase& c);
void check_splits(const OpCase& c);
void check_cost(const OpCase& c);
void check_storage_dtypes(const OpCase& c);

std::vector<OpCase> basic_cases();
std::vector<OpCase> dense_cases();
std::vector<OpCase> expert_cases();
std::vector<OpCase> update_cases();

}  // namespace moetrain::test
