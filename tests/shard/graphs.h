// Small graphs the tests of this room shard.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/shard/propagate.h"
#include "ops/autodiff.h"
#include "ops/basic.h"
#include "ops/matmul.h"
#include "ops/swiglu.h"
#include "shard/meshes.h"

namespace moetrain {

inline LayoutRow state_row(const std::string& pattern,
                           std::vector<std::vector<std::string>> layout,
                           const std::string& origin = "test") {
  LayoutRow row;
  row.kind = LayoutRow::Kind::kState;
  row.pattern = pattern;
  row.out = {std::move(layout)};
  row.origin = origin;
  return row;
}
inline LayoutRow factor_row(const std::string& pattern,
                            std::map<char, std::vector<std::string>> factors,
                            const std::string& origin = "test") {
  LayoutRow row;
  row.pattern = pattern;
  row.factors = std::move(factors);
  row.origin = origin;
  return row;
}
inline LayoutRow use_row(const std::string& pattern,
                         std::vector<std::vector<std::vector<std::string>>> in,
                         std::vector<std::vector<std::vector<std::string>>> out = {},
                         const std::string& origin = "test") {
  LayoutRow row;
  row.kind = LayoutRow::Kind::kUses;
  row.pattern = pattern;
  row.in = std::move(in);
  row.out = std::move(out);
  row.origin = origin;
  return row;
}

inline int node_named(const Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == name) return static_cast<int>(i);
  }
  return -1;
}
/// Text of the layout of result 0 of the node called `name`.
inline std::string layout_of(const Graph& graph, const Mesh& mesh, const ShardingResult& result,
                             const std::string& name) {
  const int n = node_named(graph, name);
  return n < 0 ? "no node " + name : to_string(mesh, result.nodes[n].layouts.results[0]);
}
inline std::string operand_of(const Graph& graph, const Mesh& mesh, const ShardingResult& result,
                              const std::string& name, size_t operand) {
  const int n = node_named(graph, name);
  return n < 0 ? "no node " + name
               : to_string(mesh, result.nodes[n].layouts.operands[operand]);
}

/// A worked example: h = silu(x w1) (as a product with itself), y = h w2, out = x + y.
struct Mlp {
  Graph graph;
  Value x, w1, w2, h, act, y, sum;
};
inline Mlp two_layer_mlp(int64_t rows = 64, int64_t width = 128, int64_t hidden = 256) {
  Mlp m;
  Graph& g = m.graph;
  m.x = ops::input(g, "x", DType::kF32, {rows, width});
  m.w1 = ops::state(g, "w1", DType::kF32, {hidden, width});
  m.w2 = ops::state(g, "w2", DType::kF32, {width, hidden});
  m.h = ops::matmul(g, m.x, m.w1, "h");
  m.act = ops::swiglu(g, m.h, m.h, "act");
  m.y = ops::matmul(g, m.act, m.w2, "y");
  m.sum = ops::add(g, m.x, m.y, "sum");
  return m;
}

}  // namespace moetrain
