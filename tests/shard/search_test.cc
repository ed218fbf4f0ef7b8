// The search against exhaustive enumeration, state cells, and what explain says about a change.
#include "compile/shard/search.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "compile/shard/explain.h"
#include "ops/experts.h"
#include "ops/settle.h"
#include "ops/update.h"
#include "shard/graphs.h"

namespace moetrain {
namespace {

/// Every possible decision of an op: each axis on any factor, in any order, or pending if linear.
std::vector<const Decision*> all_decisions(Problem& problem, int n) {
  const Rule& rule = problem.op_class(n).rule;
  std::vector<FactorAxes> list{{}};
  for (Axis a = 0; a < static_cast<Axis>(problem.mesh().atoms.size()); ++a) {
    std::vector<FactorAxes> more = list;
    for (const FactorAxes& f : list) {
      for (char letter : rule.factors) {
        const auto at = f.axes.find(letter);
        for (size_t i = 0; i <= (at == f.axes.end() ? 0 : at->second.size()); ++i) {
          FactorAxes g = f;
          g.axes[letter].insert(g.axes[letter].begin() + static_cast<std::ptrdiff_t>(i), a);
          more.push_back(g);
        }
      }
      for (size_t group = 0; group < rule.linear.size(); ++group) {
        if (f.linear_group >= 0 && f.linear_group != static_cast<int>(group)) continue;
        FactorAxes g = f;
        g.partial.push_back(a);
        g.linear_group = static_cast<int>(group);
        more.push_back(g);
      }
    }
    list = more;
  }
  std::set<const Decision*> seen;
  std::vector<const Decision*> decisions;
  for (const FactorAxes& f : list) {
    const Decision* d = problem.decision(problem.class_of(n), f);
    if (d != nullptr && seen.insert(d).second) decisions.push_back(d);
  }
  return decisions;
}

/// Communication of forward and gradient edges, as the search prices them.
double total(Problem& problem, const std::vector<const Decision*>& chosen) {
  double seconds = 0;
  const Graph& graph = problem.graph();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (size_t k = 0; k < graph.nodes[n].inputs.size(); ++k) {
      const int producer = graph.nodes[n].inputs[k].node;
      const int type = problem.op_class(static_cast<int>(n)).operand_types[k];
      seconds += problem.edge(type, chosen[producer]->results[0], chosen[n]->operands[k]).seconds;
      if (!problem.differentiable(producer) || !problem.differentiable(static_cast<int>(n))) continue;
      int dual = chosen[n]->operand_duals[k];
      const int wanted = chosen[producer]->result_duals[0];
      if (problem.is_state(producer)) dual = problem.waiting_dual(dual, wanted);
      seconds += problem.edge(type, dual, wanted).seconds;
    }
  }
  return seconds;
}

TEST(PropagateSearch, CloseToTheExhaustiveOptimum) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  LinkModel links;
  links.ranks_per_node = 2;
  const std::vector<std::vector<LayoutRow>> anchors{
      {state_row("x", {{"dp"}, {}}), state_row("w1", {{"mp"}, {}}), state_row("w2", {{}, {"mp"}})},
      {state_row("x", {{"dp"}, {}}), state_row("w1", {{}, {"mp"}}), state_row("w2", {{"mp"}, {}})},
      {state_row("x", {{"dp", "mp"}, {}}), state_row("w1", {{}, {}}), state_row("w2", {{}, {}})},
      {state_row("x", {{}, {"mp"}}), state_row("w1", {{"dp"}, {}}), state_row("w2", {{"dp"}, {}})}};
  for (const auto& rows : anchors) {
    const Mlp m = two_layer_mlp();
    Problem problem(m.graph, mesh, links);
    Anchors bound = bind_rows(problem, rows);
    Search search(problem, bound);
    search.spread();
    std::vector<const Decision*> chosen;
    auto take = [&] {
      chosen.clear();
      for (size_t n = 0; n < m.graph.nodes.size(); ++n) {
        chosen.push_back(search.chosen(static_cast<int>(n)));
      }
      return total(problem, chosen);
    };
    const double greedy = take();
    search.refine(10);
    const double refined = take();
    EXPECT_LE(refined, greedy * (1 + 1e-9));
    double best = 1e300;
    std::vector<int> free{m.h.node, m.act.node, m.y.node, m.sum.node};
    std::function<void(size_t)> enumerate = [&](size_t i) {
      if (i == free.size()) {
        best = std::min(best, total(problem, chosen));
        return;
      }
      for (const Decision* d : all_decisions(problem, free[i])) {
        chosen[free[i]] = d;
        // A prefix that already costs more than the best cannot win.
        double so_far = 0;
        for (size_t k = 0; k < m.graph.nodes[free[i]].inputs.size(); ++k) {
          const int producer = m.graph.nodes[free[i]].inputs[k].node;
          so_far += problem.edge(problem.op_class(free[i]).operand_types[k],
                                 chosen[producer]->results[0], d->operands[k]).seconds;
        }
        if (so_far < best) enumerate(i + 1);
      }
    };
    enumerate(0);
    EXPECT_GE(refined, best * (1 - 1e-9));
    // Pending sums and free results at the end of the graph cost the enumeration nothing, while the
    // search finishes what a reader could need: at most that one reduction lies between them.
    EXPECT_LE(refined, best + 100e-6) << "best " << best << " greedy " << greedy;
  }
}

TEST(PropagateSearch, ExplainAndDiffShowWhatAChangeTouches) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  LinkModel links;
  links.ranks_per_node = 2;
  const Mlp m = two_layer_mlp();
  const std::vector<LayoutRow> rows{state_row("x", {{"dp"}, {}}),
                                    state_row("w1", {{"mp"}, {}}, "strategy tp"),
                                    state_row("w2", {{}, {"mp"}})};
  const ShardingResult a = propagate(m.graph, mesh, links, rows);
  const std::string text = explain(m.graph, mesh, links, a);
  for (const char* part : {"w1  state {a: mp}  anchor: strategy tp", "h  matmul {b: dp, n: mp}",
                           "propagated from", "ReduceScatter(0,mp) 4.0 KiB",
                           "result [dp, -] +{mp}"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(explain_diff(m.graph, mesh, a, m.graph, mesh, a), "");
  // Pinning the add touches the add and its edges, nothing upstream.
  auto pinned = rows;
  pinned.push_back(factor_row("sum", {{'A', {"dp"}}, {'B', {}}}, "run.yaml:3:1"));
  const ShardingResult b = propagate(m.graph, mesh, links, pinned);
  const std::string diff = explain_diff(m.graph, mesh, a, m.graph, mesh, b);
  EXPECT_NE(diff.find("  sum\n"), std::string::npos) << diff;
  EXPECT_NE(diff.find("run.yaml:3:1"), std::string::npos) << diff;
  for (const char* untouched : {"  h\n", "  act\n", "  y\n", "  w1\n"}) {
    EXPECT_EQ(diff.find(untouched), std::string::npos) << diff;
  }
}

/// Gradients, an accumulator, an optimizer whose state is spread.
struct Trained {
  Graph graph;
  Value w, acc;
};
Trained trained_matmul() {
  Trained t;
  Graph& g = t.graph;
  const Value x = ops::input(g, "x", DType::kF32, {64, 32});
  t.w = ops::state(g, "w", DType::kF32, {48, 32});
  const Value y = ops::matmul(g, x, t.w, "y");
  const Value dw = g.add(ops::kMatmulDw, {y, x}, {}, "dw");
  const Value acc = ops::state(g, "grad:w", DType::kF32, {48, 32});
  t.acc = g.add(ops::kAccumulate, {acc, dw}, {}, "accumulate");
  g.tag.phase = Phase::kUpdate;
  const Value grad = ops::settle(g, t.acc, "settle");
  const Value p = ops::state(g, "master:w", DType::kF32, {48, 32});
  const Value m1 = ops::state(g, "m:w", DType::kF32, {48, 32});
  const Value v = ops::state(g, "v:w", DType::kF32, {48, 32});
  const Value factor = ops::constant(g, 1, DType::kF32, {});
  const Value hyper = ops::input(g, "hyper", DType::kF32, {4});
  const Value updated = g.add(ops::kAdamw, {p, m1, v, grad, factor, hyper},
                              {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.0}},
                              "adamw");
  g.add(ops::kAssign, {t.w, updated}, {}, "assign");
  g.add(ops::kClear, {t.acc}, {}, "clear");
  return t;
}

TEST(StateCells, AccumulatorsTakeWhatIsAdded) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"tp", 2}});
  const Trained t = trained_matmul();
  const ShardingResult r = propagate(
      t.graph, mesh, {},
      {state_row("x", {{"dp"}, {}}), state_row("w", {{"tp"}, {}}),
       state_row("master:*", {{"tp", "dp"}, {}}), state_row("hyper", {})});
  EXPECT_EQ(layout_of(t.graph, mesh, r, "grad:w"), "[tp, -] +{dp}");
  EXPECT_EQ(layout_of(t.graph, mesh, r, "accumulate"), "[tp, -] +{dp}");
  EXPECT_EQ(layout_of(t.graph, mesh, r, "clear"), "[tp, -] +{dp}");
  EXPECT_EQ(layout_of(t.graph, mesh, r, "settle"), "[(tp dp), -]");
  EXPECT_EQ(operand_of(t.graph, mesh, r, "settle", 0), "[(tp dp), -]");
  // Moments without a row of their own lie with the master; the update writes w where it is.
  EXPECT_EQ(layout_of(t.graph, mesh, r, "m:w"), "[(tp dp), -]");
  EXPECT_EQ(layout_of(t.graph, mesh, r, "adamw"), "[(tp dp), -]");
  EXPECT_EQ(operand_of(t.graph, mesh, r, "assign", 0), "[tp, -]");
  EXPECT_EQ(layout_of(t.graph, mesh, r, "assign"), "[tp, -]");
}

TEST(StateCells, ARowOnAnAccumulatorScattersEveryTime) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"tp", 2}});
  const Trained t = trained_matmul();
  const ShardingResult r = propagate(
      t.graph, mesh, {}, {state_row("x", {{"dp"}, {}}), state_row("w", {{"tp"}, {}}),
                          state_row("grad:w", {{"tp", "dp"}, {}})});
  EXPECT_EQ(layout_of(t.graph, mesh, r, "dw"), "[tp, -] +{dp}");
  EXPECT_EQ(operand_of(t.graph, mesh, r, "accumulate", 1), "[(tp dp), -]");
}

TEST(StateCells, StatesUpdatedTogetherNeedOneLayout) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"tp", 2}});
  const Trained t = trained_matmul();
  try {
    propagate(t.graph, mesh, {}, {state_row("master:w", {{"tp"}, {}}, "a.yaml:1:1"),
                                  state_row("m:w", {{"dp"}, {}}, "a.yaml:2:1")});
    FAIL();
  } catch (const UserError& error) {
    for (const char* part : {"master:w", "m:w", "a.yaml:1:1", "a.yaml:2:1", "[tp, -]", "[dp, -]"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(ExpertRows, TheWeightsRowTellsDispatch) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"ep", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {4, 4, 8});
  const Value idx = ops::input(g, "idx", DType::kI32, {4, 4, 2});
  const Value weight = ops::input(g, "weight", DType::kF32, {4, 4, 2});
  const Value w = ops::state(g, "w", DType::kF32, {4, 8, 8});
  const auto d = ops::dispatch(g, x, idx, 4, "dispatch");
  const Value rows = ops::grouped_matmul(g, d.rows, w, d.plan, "experts");
  ops::combine(g, rows, d.plan, weight, idx, DType::kF32, "combine");
  std::vector<LayoutRow> anchors{state_row("x", {{"dp", "ep"}, {}, {}}),
                                 state_row("w", {{"ep"}, {}, {}})};
  ShardingResult r = propagate(g, mesh, {}, anchors);
  EXPECT_EQ(layout_of(g, mesh, r, "dispatch"), "[ep, dp, -]");
  EXPECT_EQ(layout_of(g, mesh, r, "combine"), "[(dp ep), -, -]");
  EXPECT_EQ(operand_of(g, mesh, r, "combine", 3), "[(dp ep), -, -]");
  // A row that wants whole token rows split otherwise is refused, not ignored.
  anchors.push_back(use_row("experts", {{{"ep"}, {}, {}}}));
  EXPECT_THROW(propagate(g, mesh, {}, anchors), UserError);
}

}  // namespace
}  // namespace moetrain
