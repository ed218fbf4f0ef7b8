// Three operators just large enough to build graphs with, so that these tests need no operator library.
#pragma once

#include "base/error.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::test {

inline std::vector<Type> infer_leaf(const Attrs& attrs, std::span<const Type>) {
  return {{attrs.integer_or("counts", 0) ? DType::kI32 : DType::kF32, attrs.integers("shape")}};
}

inline std::vector<Type> infer_sum(const Attrs&, std::span<const Type> inputs) {
  MT_CHECK(inputs.size() == 2 && inputs[0] == inputs[1], "sum of ", inputs.size(), " operands");
  return {inputs[0]};
}

inline void reference_sum(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  for (int64_t i = 0; i < out[0].numel(); ++i) {
    set_element(out[0], i, get_element(in[0], i) + get_element(in[1], i));
  }
}

/// Makes a ragged value with room for 4 rows of width 2 of which `rows` exist, and its plan.
inline std::vector<Type> infer_rows(const Attrs&, std::span<const Type>) {
  return {{DType::kF32, {2, 4, 2}, true}, {DType::kI32, {3}}};
}

inline void reference_rows(const Attrs& attrs, std::span<const Tensor>, std::span<Tensor> out) {
  for (int64_t i = 0; i < out[0].numel(); ++i) set_element(out[0], i, static_cast<double>(i));
  const int64_t rows = attrs.integer("rows");
  for (int64_t i = 0; i < 3; ++i) set_element(out[1], i, static_cast<double>(i ? rows : 0));
}

inline int alias_first(const Attrs&, int) { return 0; }

inline constexpr OpDef kInput = {"input", infer_leaf, nullptr, nullptr, nullptr, nullptr};
inline constexpr OpDef kState = {"state", infer_leaf, nullptr, nullptr, nullptr, nullptr};
inline constexpr OpDef kSum = {"sum", infer_sum, nullptr, nullptr, nullptr, reference_sum};
inline constexpr OpDef kSumInPlace = {"sum_in_place", infer_sum,     nullptr,    nullptr,
                                      nullptr,        reference_sum, alias_first};
inline constexpr OpDef kRows = {"rows", infer_rows, nullptr, nullptr, nullptr, reference_rows};

}  // namespace moetrain::test
