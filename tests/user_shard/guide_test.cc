// The examples of the `shard` guide, built on the C++ graph, annotated by user rows, run on ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "compile/strategy/user.h"
#include "ops/autodiff.h"
#include "shard/graphs.h"
#include "user_shard/ops.h"
#include "user_shard/run_graph.h"

namespace moetrain {
namespace {

LinkModel nodes_of(int ranks) {
  LinkModel links;
  links.ranks_per_node = ranks;
  return links;
}

/// Propagates and runs; the outputs must be those of one rank.
GraphRun run_rows(const Graph& graph, const Mesh& mesh, const LinkModel& links,
                  const std::vector<LayoutRow>& rows, ShardingResult* sharding = nullptr) {
  const ShardingResult result = propagate(graph, mesh, links, rows);
  if (sharding != nullptr) *sharding = result;
  const Tensors leaves = leaf_values(graph);
  GraphRun run = run_graph(graph, result, mesh, links, leaves);
  expect_same(expected(graph, leaves), run, 1e-4);
  return run;
}

int64_t moved(const GraphRun& run, const std::string& consumer) {
  int64_t bytes = 0;
  for (const ReshardNote& note : run.reshards) {
    if (note.consumer == consumer) bytes += note.plan.bytes;
  }
  return bytes;
}

/// Dense + ReLU: in_strategy ((4, 1),), parameter_plan {"self.weight": (1, 4)} on four devices. Both
/// split the same devices; whatever moves fewer bytes moves.
TEST(ShardGuide, DenseAndReluWithAConflict) {
  const Mesh mesh = make_mesh({{"x", 4}});
  LinkModel links = nodes_of(4);
  links.intra_latency = 0;  // the guide compares bytes alone
  for (const auto& [batch, bytes] : {std::pair{32, 7680}, {64, 12288}}) {
    Graph g;
    const Value x = ops::state(g, "in", DType::kF32, {batch, 64});
    const Value w = ops::state(g, "weight", DType::kF32, {64, 64});
    const Value y = ops::matmul(g, x, w, "dense");
    const Value relu = g.add(test::kRelu, {y}, {}, "relu");
    g.mark_output("out", relu);
    ShardingResult sharding;
    const GraphRun run =
        run_rows(g, mesh, links,
                 {user_uses("dense", {{{"x"}, {}}}, {}, "guide.yaml:2:5"),
                  user_parameter("in", {{"x"}, {}}, "guide.yaml:3:5"),
                  user_parameter("self.weight", {{}, {"x"}}, "guide.yaml:4:5")},
                 &sharding);
    EXPECT_EQ(layout_of(g, mesh, sharding, "weight"), "[-, x]");
    EXPECT_EQ(layout_of(g, mesh, sharding, "relu"), "[x, -]");
    EXPECT_EQ(moved(run, "dense") + moved(run, "relu"), bytes) << "batch " << batch;
  }
}

/// The two-layer network: x over dp, the first weight by columns, the second by rows; forward, and the
/// gradients of everything.
TEST(ShardGuide, TwoLayerMlpWithGradients) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  Mlp m = two_layer_mlp();
  Graph& g = m.graph;
  const Value loss = g.add(test::kTotal, {m.sum}, {}, "loss");
  const std::vector<Value> grads = gradients(g, loss, {m.w1, m.w2});
  g.mark_output("result", m.sum);
  g.mark_output("loss", loss);
  g.mark_output("dw1", grads[0]);
  g.mark_output("dw2", grads[1]);
  ShardingResult sharding;
  const GraphRun run = run_rows(g, mesh, nodes_of(2),
                                {user_parameter("x", {{"dp"}, {}}, "guide.yaml:1:1"),
                                 user_parameter("w1", {{"mp"}, {}}, "guide.yaml:2:1"),
                                 user_parameter("w2", {{}, {"mp"}}, "guide.yaml:3:1")},
                                &sharding);
  EXPECT_EQ(layout_of(g, mesh, sharding, "h"), "[dp, mp]");
  EXPECT_EQ(layout_of(g, mesh, sharding, "y"), "[dp, -] +{mp}");
  EXPECT_EQ(moved(run, "h"), 0);
  EXPECT_EQ(moved(run, "act"), 0);
  EXPECT_EQ(moved(run, "y"), 0);
  EXPECT_LE(moved(run, "sum"), 8192);
}

/// The result asked for whole over mp (out_strategy): an all-reduce; or cut further: a reduce-scatter.
TEST(ShardGuide, OutStrategyChoosesTheReduction) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"mp", 2}});
  for (const bool cut : {false, true}) {
    Graph g;
    const Value x = ops::input(g, "x", DType::kF32, {16, 32});
    const Value w = ops::state(g, "w", DType::kF32, {8, 32});
    const Value y = ops::matmul(g, x, w, "y");
    g.mark_output("out", g.add(test::kRelu, {y}, {}, "relu"));
    UserLayout out{{"dp"}, {}};
    if (cut) out[0].push_back("mp");
    ShardingResult sharding;
    const GraphRun run =
        run_rows(g, mesh, nodes_of(4),
                 {user_parameter("x", {{"dp"}, {"mp"}}, "guide.yaml:5:3"),
                  user_parameter("w", {{}, {"mp"}}, "guide.yaml:6:3"),
                  user_uses("y", {}, {out}, "guide.yaml:7:3"),
                  user_factors("relu", {{'A', out[0]}, {'B', {}}}, "guide.yaml:8:3")},
                 &sharding);
    EXPECT_EQ(layout_of(g, mesh, sharding, "y"), "[dp, -] +{mp}");
    EXPECT_EQ(operand_of(g, mesh, sharding, "relu", 0), cut ? "[(dp mp), -]" : "[dp, -]");
    ASSERT_FALSE(run.reshards.empty());
    EXPECT_EQ(to_string(mesh, run.reshards[0].plan),
              cut ? "ReduceScatter(0,mp)" : "AllReduce(mp)");
  }
}

/// Attention scores by named layouts: Layout((4, 2), ("dp", "mp")), q ("dp", "None", "mp"),
/// k ("dp", "mp", "None"): the scores wait as a sum over mp.
TEST(ShardGuide, AttentionScoresByNamedLayout) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  Graph g;
  const Value q = ops::input(g, "q", DType::kF32, {8, 4, 16});
  const Value k = ops::input(g, "k", DType::kF32, {8, 16, 4});
  const Value scores = g.add(test::kScores, {q, k}, {}, "scores");
  g.mark_output("result", scores);
  ShardingResult sharding;
  const GraphRun run =
      run_rows(g, mesh, nodes_of(8),
               {user_uses("scores", {{{"dp"}, {"None"}, {"mp"}}, {{"dp"}, {"mp"}, {"None"}}}, {},
                          "guide.yaml:9:3")},
               &sharding);
  EXPECT_EQ(layout_of(g, mesh, sharding, "scores"), "[dp, -, -] +{mp}");
  EXPECT_EQ(layout_of(g, mesh, sharding, "q"), "[dp, -, mp]");
  EXPECT_EQ(layout_of(g, mesh, sharding, "k"), "[dp, mp, -]");
  EXPECT_EQ(moved(run, "scores"), 0);
}

/// A parameter stored one way and used another: gathered for its use, and the place of the row is told.
TEST(ShardGuide, AParameterApartFromItsUse) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"mp", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {16, 32});
  const Value w = ops::state(g, "w", DType::kF32, {8, 32});
  g.mark_output("out", ops::matmul(g, x, w, "y"));
  ShardingResult sharding;
  const GraphRun run = run_rows(g, mesh, nodes_of(4),
                                {user_factors("y", {{'b', {"dp"}}, {'n', {"mp"}}, {'k', {}}}, "a.yaml:4:3"),
                                 user_parameter("x", {{"dp"}, {}}, "a.yaml:5:3"),
                                 user_parameter("w", {{}, {"dp"}}, "a.yaml:6:3")},
                                &sharding);
  EXPECT_EQ(layout_of(g, mesh, sharding, "w"), "[-, dp]");
  EXPECT_EQ(operand_of(g, mesh, sharding, "y", 1), "[mp, -]");
  EXPECT_GT(moved(run, "y"), 0);
  const bool said = std::any_of(sharding.notes.begin(), sharding.notes.end(), [](const auto& note) {
    return note.find("RESHARD w -> y") != std::string::npos;
  });
  EXPECT_TRUE(said);
}

/// A layout the shapes cannot carry is refused with op, shape, place and remedy.
TEST(ShardGuide, TheImpossibleIsRefused) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"mp", 3}});
  const Mlp m = two_layer_mlp();
  try {
    propagate(m.graph, mesh, {}, {user_factors("y", {{'k', {"mp"}}}, "run.yaml:31:5")});
    FAIL() << "256 hidden units were cut in 3";
  } catch (const UserError& error) {
    const std::string text = error.what();
    for (const char* part : {"run.yaml:31:5", "matmul 'y'", "256", "3", "mp"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
}

}  // namespace
}  // namespace moetrain
