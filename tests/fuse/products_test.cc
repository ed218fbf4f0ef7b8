// Which products become one, with what is around them, and which must not.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/fuse/projections.h"
#include "compile/fuse/swiglu.h"
#include "ops/basic.h"
#include "ops/experts.h"
#include "ops/local.h"
#include "ops/matmul.h"
#include "ops/projections.h"
#include "ops/rows.h"
#include "ops/swiglu.h"
#include "tiny_model.h"

namespace moetrain::test {
namespace {

std::vector<const Node*> all(const Graph& graph, const OpDef& op) {
  std::vector<const Node*> nodes;
  for (const Node& node : graph.nodes) {
    if (node.op == &op) nodes.push_back(&node);
  }
  return nodes;
}

Compiled compiled(DType compute, std::vector<std::string> off = {}) {
  CompileRequest request;
  request.fusion_off = std::move(off);
  return compile(training_graph(tiny_model(), compute), request);
}

const PassTime& pass(const Compiled& c, const std::string& name) {
  for (const PassTime& p : c.passes) {
    if (p.name == "fuse " + name) return p;
  }
  throw std::runtime_error("no pass " + name);
}

TEST(Products, OfOneInputBecomeOne) {
  const Compiled c = compiled(DType::kBF16);
  const Graph& g = c.local.graph;
  // Four blocks (one dense, two with experts, one of multi-token prediction with experts): q_a and kv_a of
  // each, gate and up of the dense one, of the experts and of the shared expert of the three others.
  const auto forward = all(g, ops::kProjections);
  ASSERT_EQ(forward.size(), 4u + 1 + 3 + 3);
  int activated = 0, gathered = 0;
  for (const Node* node : forward) {
    EXPECT_EQ(node->attrs.integer("count"), 2) << node->name;
    activated += node->attrs.has("act");
    gathered += node->attrs.has("gather");
  }
  EXPECT_EQ(activated, 7);
  EXPECT_EQ(gathered, 3);
  EXPECT_EQ(all(g, ops::kProjectionsDx).size(), 11u);
  EXPECT_EQ(all(g, ops::kProjectionsDw).size(), 11u);
  EXPECT_EQ(all(g, ops::kMatmulDxSwiglu).size(), 7u);
  EXPECT_TRUE(all(g, ops::kSwiglu).empty());
  EXPECT_TRUE(all(g, ops::kSwigluGrad).empty());
  EXPECT_TRUE(all(g, ops::kGatherRows).empty());
  for (const char* name : {"projections", "swiglu", "gather"}) {
    EXPECT_GT(pass(c, name).fused, 0) << name;
    EXPECT_GT(pass(c, name).bytes_saved, 0) << name;
  }
}

TEST(Products, TrafficSavedIsCounted) {
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {8, 4});
  const Value a = ops::state(g, "a", DType::kF32, {6, 4}), b = ops::state(g, "b", DType::kF32, {6, 4});
  const Value gate = ops::matmul(g, x, a, "gate"), up = ops::matmul(g, x, b, "up");
  g.mark_output("h", ops::swiglu(g, gate, up, "act"));
  LocalGraph local;
  local.graph = g;
  FusionReport products, activation;
  local = fuse_projections(local, products);
  EXPECT_EQ(products.nodes, 1);
  EXPECT_EQ(products.bytes_saved, 8 * 4 * 4);  // x read once instead of twice
  local = fuse_swiglu(local, activation);
  EXPECT_EQ(activation.nodes, 1);
  EXPECT_EQ(activation.bytes_saved, 4 * 8 * 6 * 4);  // gate and up neither written nor read
  const auto made = all(local.graph, ops::kProjections);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0]->attrs.integer_or("keep", 1), 0) << "nobody else reads gate and up";
  ASSERT_EQ(made[0]->outputs.size(), 1u);
}

TEST(Products, AreApartWhereTheyMustBe) {
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {8, 4});
  const Value a = ops::state(g, "a", DType::kF32, {4, 4}), b = ops::state(g, "b", DType::kF32, {4, 4});
  const Value first = ops::matmul(g, x, a, "first");
  const Value moved = g.add(ops::kAllReduce, {first}, {{"axes", std::vector<int64_t>{0}}}, "moved");
  const Value second = ops::matmul(g, x, b, "second");  // behind a collective
  g.tag.layer = 3;
  const Value third = ops::matmul(g, x, b, "third");  // of another layer
  for (Value v : {moved, second, third}) g.mark_output("y", v);
  LocalGraph local;
  local.graph = g;
  FusionReport report;
  EXPECT_EQ(all(fuse_projections(local, report).graph, ops::kMatmul).size(), 3u);
  EXPECT_EQ(report.nodes, 0);
}

TEST(Products, WeightGradientsThatFillTransfersStayApart) {
  for (bool transfer : {false, true}) {
    Graph g;
    g.tag.phase = Phase::kBackward;
    const Value x = ops::input(g, "x", DType::kF32, {8, 4}), dy = ops::input(g, "dy", DType::kF32, {8, 4});
    const Value a = ops::state(g, "a", DType::kF32, {4, 4}), b = ops::state(g, "b", DType::kF32, {4, 4});
    const Value da = g.add(ops::kMatmulDw, {dy, x}, {}, "a.dw"), db = g.add(ops::kMatmulDw, {dy, x}, {}, "b.dw");
    Value dx = ops::add(g, g.add(ops::kMatmulDx, {dy, a}, {}, "a.dx"), g.add(ops::kMatmulDx, {dy, b}, {}, "b.dx"),
                        "dx");
    if (transfer) dx = g.add(ops::kAllReduce, {dx}, {{"axes", std::vector<int64_t>{0}}}, "moved");
    for (Value v : {da, db, dx}) g.mark_output("y", v);
    LocalGraph local;
    local.graph = g;
    FusionReport report;
    const Graph fused = fuse_projections(local, report).graph;
    EXPECT_EQ(all(fused, ops::kMatmulDw).size(), transfer ? 2u : 0u);
    EXPECT_EQ(all(fused, ops::kProjectionsDx).size(), 1u);
  }
}

TEST(Products, RouterStaysOutOfTheActivationsPair) {
  // In float32 router, gate and up of the shared expert read the same value.
  const Compiled c = compiled(DType::kF32);
  for (const Node* node : all(c.local.graph, ops::kProjections)) {
    EXPECT_EQ(node->attrs.integer("count"), 2) << node->name;
    EXPECT_EQ(node->name.find("router"), std::string::npos) << node->name;
  }
}

TEST(Products, EachPassIsSwitchedOffByName) {
  const Graph apart = compiled(DType::kBF16, {"projections"}).local.graph;
  EXPECT_TRUE(all(apart, ops::kProjections).empty());
  EXPECT_FALSE(all(apart, ops::kSwiglu).empty());
  EXPECT_FALSE(all(apart, ops::kGatherRows).empty());
  const Graph no_swiglu = compiled(DType::kBF16, {"swiglu"}).local.graph;
  EXPECT_EQ(all(no_swiglu, ops::kSwiglu).size(), 7u);
  EXPECT_EQ(all(no_swiglu, ops::kSwigluGrad).size(), 7u);
  EXPECT_EQ(all(no_swiglu, ops::kProjections).size(), 11u);
  EXPECT_EQ(all(compiled(DType::kBF16, {"gather"}).local.graph, ops::kGatherRows).size(), 3u);
}

}  // namespace
}  // namespace moetrain::test
