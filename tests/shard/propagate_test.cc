// Propagation: the worked example, small vectors, and invariance against row order.
#include "compile/shard/propagate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "shard/graphs.h"

namespace moetrain {
namespace {

/// 4 nodes of 2 ranks, as in the worked example.
LinkModel example_links() {
  LinkModel links;
  links.ranks_per_node = 2;
  return links;
}

std::vector<LayoutRow> example_rows() {
  return {state_row("x", {{"dp"}, {}}), state_row("w1", {{"mp"}, {}}),
          state_row("w2", {{}, {"mp"}})};
}

TEST(Propagate, WorkedExampleFindsSequenceParallelism) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  const ShardingResult r = propagate(m.graph, mesh, example_links(), example_rows());
  EXPECT_EQ(layout_of(m.graph, mesh, r, "h"), "[dp, mp]");
  EXPECT_EQ(layout_of(m.graph, mesh, r, "act"), "[dp, mp]");
  EXPECT_EQ(layout_of(m.graph, mesh, r, "y"), "[dp, -] +{mp}");
  EXPECT_EQ(layout_of(m.graph, mesh, r, "sum"), "[(dp mp), -]");
  const ReshardPlan plan =
      plan_reshard(mesh, example_links(), {64, 128}, DType::kF32,
                   r.nodes[m.y.node].layouts.results[0], r.nodes[m.sum.node].layouts.operands[1]);
  EXPECT_EQ(to_string(mesh, plan), "ReduceScatter(0,mp)");
  EXPECT_EQ(plan.bytes, 4096);
}

TEST(Propagate, PinnedAddTakesAnAllReduce) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  auto rows = example_rows();
  rows.push_back(factor_row("sum", {{'A', {"dp"}}, {'B', {}}}));
  const ShardingResult r = propagate(m.graph, mesh, example_links(), rows);
  EXPECT_EQ(layout_of(m.graph, mesh, r, "sum"), "[dp, -]");
  const ReshardPlan plan =
      plan_reshard(mesh, example_links(), {64, 128}, DType::kF32,
                   r.nodes[m.y.node].layouts.results[0], r.nodes[m.sum.node].layouts.operands[1]);
  EXPECT_EQ(to_string(mesh, plan), "AllReduce(mp)");
  EXPECT_EQ(plan.bytes, 8192);
  // The same wish as a use row on the operands.
  rows.back() = use_row("sum", {{{"dp"}, {}}, {{"dp"}, {}}}, {{{"dp"}, {}}});
  EXPECT_EQ(layout_of(m.graph, mesh, propagate(m.graph, mesh, example_links(), rows), "sum"),
            "[dp, -]");
}

TEST(Propagate, BackwardFromOneWeight) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  const ShardingResult r =
      propagate(m.graph, mesh, example_links(), {state_row("w2", {{}, {"mp"}})});
  EXPECT_EQ(r.nodes[m.act.node].layouts.results[0].dims[1], std::vector<Axis>{1});
  EXPECT_EQ(r.nodes[m.h.node].layouts.results[0].dims[1], std::vector<Axis>{1});
  EXPECT_EQ(r.nodes[m.w1.node].layouts.results[0].dims[0], std::vector<Axis>{1});
}

TEST(Propagate, OrderOfRowsDoesNotMatter) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  auto rows = example_rows();
  rows.push_back(factor_row("*", {{'b', {"dp"}}}, "strategy"));
  rows.push_back(factor_row("h", {{'b', {}}}, "user"));
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.origin + a.pattern < b.origin + b.pattern; });
  std::vector<std::string> seen;
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    std::vector<LayoutRow> shuffled;
    for (size_t i : order) shuffled.push_back(rows[i]);
    const ShardingResult r = propagate(m.graph, mesh, example_links(), shuffled);
    std::string text;
    for (const NodeSharding& n : r.nodes) text += to_string(mesh, n.factors) + n.origin + ";";
    for (const std::string& note : r.notes) text += note;
    seen.push_back(text);
  } while (std::next_permutation(order.begin(), order.end()));
  for (const std::string& text : seen) EXPECT_EQ(text, seen[0]);
}

TEST(Propagate, NoRowsMeansReplicated) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  const ShardingResult r = propagate(m.graph, mesh, example_links(), {});
  for (const NodeSharding& n : r.nodes) {
    for (const Layout& layout : n.layouts.results) EXPECT_EQ(to_string(mesh, layout), "[-, -]");
  }
  EXPECT_EQ(r.reshard_seconds, 0);
}

/// x over the batch, the weight over the contracted dim, on the same four devices.
std::string shard_dense(int64_t batch, const LinkModel& links) {
  const Mesh mesh = make_mesh({{"x", 4}});
  Graph g;
  const Value x = ops::state(g, "in", DType::kF32, {batch, 64});  // wants a gradient too
  const Value w = ops::state(g, "w", DType::kF32, {64, 64});
  const Value y = ops::matmul(g, x, w, "y");
  const Value relu = ops::swiglu(g, y, y, "relu");
  const ShardingResult r =
      propagate(g, mesh, links, {state_row("in", {{"x"}, {}}), state_row("w", {{}, {"x"}})});
  EXPECT_EQ(to_string(mesh, r.nodes[relu.node].layouts.results[0]), "[x, -]");
  return to_string(mesh, r.nodes[y.node].layouts.operands[0]) +
         to_string(mesh, r.nodes[y.node].layouts.operands[1]);
}

TEST(Propagate, DenseConflictIsSettledByBytes) {
  LinkModel links;
  links.ranks_per_node = 4;
  links.intra_latency = 0;  // the worked numbers compare bytes alone
  EXPECT_EQ(shard_dense(32, links), "[-, x][-, x]");  // move activations
  EXPECT_EQ(shard_dense(64, links), "[x, -][-, -]");  // gather the weight
}

/// What a matmul with a split contracted dim gives.
TEST(Propagate, MatmulRules) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"mp", 4}, {"sp", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {64, 64});
  const Value w = ops::state(g, "w", DType::kF32, {64, 64});
  const Value v = ops::state(g, "v", DType::kF32, {64, 64});
  const Value y = ops::matmul(g, x, w, "y");
  ops::matmul(g, y, v, "z");
  const auto rows = std::vector<LayoutRow>{state_row("x", {{"dp"}, {"mp"}}),
                                          state_row("w", {{"sp"}, {"mp"}})};
  ShardingResult r = propagate(g, mesh, {}, rows);
  EXPECT_EQ(layout_of(g, mesh, r, "y"), "[dp, sp] +{mp}");
  auto out = [&](std::vector<std::vector<std::string>> layout) {
    auto more = rows;
    more.push_back(use_row("y", {}, {std::move(layout)}));
    const ShardingResult q = propagate(g, mesh, {}, more);
    EXPECT_EQ(layout_of(g, mesh, q, "y"), "[dp, sp] +{mp}");
    return plan_reshard(mesh, {}, {64, 64}, DType::kF32, q.nodes[y.node].layouts.results[0],
                        q.nodes[node_named(g, "z")].layouts.operands[0]);
  };
  EXPECT_EQ(to_string(mesh, out({{"dp"}, {"sp"}})), "AllReduce(mp)");
  EXPECT_EQ(to_string(mesh, out({{"dp", "mp"}, {"sp"}})), "ReduceScatter(0,mp)");
}

/// A free weight's columns take the idle axis.
TEST(Propagate, FreeWeightTakesTheIdleAxis) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"sp", 4}, {"mp", 1}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {64, 64});
  const Value w = ops::state(g, "w", DType::kF32, {64, 64});
  ops::matmul(g, x, w, "y");
  const ShardingResult r = propagate(g, mesh, {}, {state_row("x", {{"dp"}, {"mp"}})});
  EXPECT_EQ(layout_of(g, mesh, r, "y"), "[dp, sp]");
  EXPECT_EQ(layout_of(g, mesh, r, "w"), "[sp, -]");
}

/// The add behind a matmul uses all devices; a stated result layout is followed.
TEST(Propagate, AddBehindAPartialMatmul) {
  const Mesh mesh = make_mesh({{"b", 4}, {"k", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {64, 64});
  const Value w = ops::state(g, "w", DType::kF32, {64, 64});
  const Value y = ops::matmul(g, x, w, "y");
  const Value c = ops::input(g, "c", DType::kF32, {64, 64});
  const Value sum = ops::add(g, y, c, "sum");
  auto rows = std::vector<LayoutRow>{state_row("x", {{"b"}, {"k"}}), state_row("w", {{}, {"k"}}),
                                    state_row("c", {{}, {}})};
  ShardingResult r = propagate(g, mesh, {}, rows);
  const Layout& free = r.nodes[sum.node].layouts.results[0];
  EXPECT_TRUE(free.partial.empty());
  EXPECT_EQ(mesh.size(free.dims[0]) * mesh.size(free.dims[1]), 8) << to_string(mesh, free);
  rows.push_back(use_row("y", {}, {{{"b", "k"}, {}}}));
  r = propagate(g, mesh, {}, rows);
  EXPECT_EQ(layout_of(g, mesh, r, "sum"), "[(b k), -]");
}

TEST(Propagate, RefusalsNameOpShapesAxesAndRemedy) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 3}});
  const Mlp m = two_layer_mlp();
  try {
    propagate(m.graph, mesh, {},
              {factor_row("h", {{'n', {"mp"}}}, "run.yaml:31:5"), state_row("w1", {{"tp"}, {}}),
               state_row("w2", {{"mp"}, {}}, "strategy tp")});
    FAIL() << "impossible rows were accepted";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.diagnostics().size(), 3u) << text;
    for (const char* part : {"run.yaml:31:5", "matmul 'h'", "256", "3", "mp", "LAYOUT_DIVIDE",
                             "LAYOUT_AXIS_UNKNOWN", "'tp'", "strategy tp", "w2"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  EXPECT_THROW(propagate(m.graph, mesh, {}, {factor_row("h", {{'q', {"mp"}}})}), UserError);
  const ShardingResult r = propagate(m.graph, mesh, {}, {factor_row("nothing.*", {{'n', {"mp"}}})});
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_NE(r.notes[0].find("matches nothing"), std::string::npos);
}

TEST(Propagate, ConflictingAnchorsBecomeARedistribution) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Mlp m = two_layer_mlp();
  auto rows = example_rows();
  rows.push_back(factor_row("h", {{'b', {"dp"}}, {'n', {}}, {'k', {}}}, "user"));
  const ShardingResult r = propagate(m.graph, mesh, example_links(), rows);
  EXPECT_EQ(layout_of(m.graph, mesh, r, "h"), "[dp, -]");
  ASSERT_FALSE(r.notes.empty());
  EXPECT_NE(r.notes[0].find("RESHARD w1 -> h"), std::string::npos) << r.notes[0];
  EXPECT_NE(r.notes[0].find("AllGather(0,mp)"), std::string::npos) << r.notes[0];
}

}  // namespace
}  // namespace moetrain
