// Building, printing and verifying graphs.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include "toy_ops.h"

namespace moetrain::test {
namespace {

Graph example() {
  Graph g;
  const Value x = g.add(kInput, {}, {{"shape", Shape{2, 3}}}, "x");
  {
    Scope scope(g, "layers.0.", 0);
    const Value y = g.add(kSum, {x, x}, {}, "twice");
    Scope inner(g, "attn.");
    g.mark_output("z", g.add(kSum, {x, y}));
  }
  return g;
}

TEST(Graph, PrintsOneLinePerNode) {
  EXPECT_EQ(print(example()),
            "%0 = input() {shape=[2,3]} : f32[2, 3]  # x\n"
            "%1 = sum(%0, %0) : f32[2, 3]  # layers.0.twice\n"
            "%2 = sum(%0, %1) : f32[2, 3]  # layers.0.attn.sum\n"
            "output z = %2\n");
}

TEST(Graph, PrintsOutputsAndRaggedTypes) {
  Graph g;
  const int n = g.append(kRows, {}, {{"rows", int64_t{3}}}, "rows");
  g.mark_output("plan", {n, 1});
  EXPECT_EQ(print(g), "%0 = rows() {rows=3} : f32ragged[2, 4, 2], i32[3]  # rows\noutput plan = %0.1\n");
}

TEST(Graph, ScopesSetTagsAndEnd) {
  const Graph g = example();
  EXPECT_EQ(g.nodes[0].tag.layer, -1);
  EXPECT_EQ(g.nodes[1].tag.layer, 0);
  EXPECT_EQ(g.nodes[2].tag.layer, 0);
  EXPECT_EQ(g.tag.layer, -1);
  EXPECT_EQ(g.scope, "");
}

TEST(Graph, UsersComeInOrderWithRepeats) {
  const auto users = users_of(example());
  EXPECT_EQ(users[0], (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(users[1], (std::vector<int>{2}));
  EXPECT_TRUE(users[2].empty());
}

TEST(Graph, RefusesForeignValuesAndWrongTypes) {
  Graph g;
  EXPECT_THROW(g.add(kSum, {Value{0, 0}, Value{0, 0}}), InternalError);
  const Value x = g.add(kInput, {}, {{"shape", Shape{2}}}, "x");
  const Value y = g.add(kInput, {}, {{"shape", Shape{3}}}, "y");
  EXPECT_THROW(g.add(kSum, {x, y}), InternalError);
  EXPECT_EQ(g.nodes.size(), 2u);
}

TEST(Verify, AcceptsWhatWasBuilt) { EXPECT_NO_THROW(verify(example())); }

TEST(Verify, FindsEveryBrokenInvariant) {
  auto broken = [](auto change) {
    Graph g = example();
    change(g);
    return g;
  };
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].inputs[0] = {2, 0}; })), InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].inputs[0] = {1, 0}; })), InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].inputs[0] = {0, 1}; })), InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].outputs[0].dtype = DType::kBF16; })),
               InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].inputs.pop_back(); })), InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.nodes[1].op = nullptr; })), InternalError);
  EXPECT_THROW(verify(broken([](Graph& g) { g.outputs[0].value.node = 3; })), InternalError);
}

}  // namespace
}  // namespace moetrain::test
