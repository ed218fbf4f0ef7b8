// OpDef: all the compiler needs to know of one operator, as plain data beside its reference loop.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/graph.h"

namespace moetrain {

/// Work of one node: floating-point operations of matrix products, other operations, bytes moved.
struct Cost {
  double matmul_flops = 0;
  double vector_flops = 0;
  double bytes = 0;
};

/// One operator. One `constexpr` (or const) object per operator lives in its family's file in lib/ops.
struct OpDef {
  const char* name;

  /// Output types from attributes and input types. Throws InternalError for wrong shapes.
  std::vector<Type> (*infer)(const Attrs& attrs, std::span<const Type> inputs);

  /// The sharding rule as one line of text (grammar in compile/shard/rule.h), e.g.
  /// "bsk,nk->bsn; linear 0|1". Letters are factors. Never null: an op without a rule does not compile.
  std::string (*rule)(const Attrs& attrs, std::span<const Type> inputs);

  /// Gradients for the inputs from the outputs' gradients (an invalid Value = zero / none). Appends
  /// to `graph`. Null: gradients never flow through this op.
  std::vector<Value> (*vjp)(Graph& graph, int node, std::span<const Value> cotangents);

  Cost (*cost)(const Attrs& attrs, std::span<const Type> inputs, std::span<const Type> outputs);

  /// The reference loops, in double, for any float dtype of the tensors. Ragged tensors come with
  /// their actual row count in dim 0 ([rows, ...]). Null only for ops that carry no computation
  /// (input, state, collectives).
  void (*reference)(const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs);

  /// Which input each output shares its memory with (-1: none). An in-place update (accumulate,
  /// adamw) overwrites; reshape only renames. Null: no aliases.
  int (*alias)(const Attrs& attrs, int output) = nullptr;
};

}  // namespace moetrain
