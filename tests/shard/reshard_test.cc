// Redistribution plans: the priced vectors, and every pair of layouts played on index data.
#include "compile/shard/reshard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "compile/shard/apply_step.h"
#include "compile/shard/direct.h"
#include "shard/meshes.h"

namespace moetrain {
namespace {

/// 4 nodes of 2: dp between nodes (10 us, 25 GB/s), mp inside (3 us, 100 GB/s).
LinkModel two_speed_links() {
  LinkModel links;
  links.ranks_per_node = 2;
  links.memory_bandwidth = 1e15;  // slices cost nothing worth reading
  return links;
}

struct PlanCase {
  const char *from, *to, *plan;
  double microseconds;
};

class PlanTable : public ::testing::TestWithParam<PlanCase> {};

TEST_P(PlanTable, CheapestPlan) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const PlanCase& c = GetParam();
  const ReshardPlan plan = plan_reshard(mesh, two_speed_links(), {1024, 1024}, DType::kF32,
                                        parse_layout(mesh, c.from), parse_layout(mesh, c.to));
  EXPECT_EQ(to_string(mesh, plan), c.plan);
  EXPECT_NEAR(plan.seconds * 1e6, c.microseconds, 0.06);
}

// A table worked by hand. Its row 15 takes three collectives (122.5 us): one two-level
// scatter over both axes is cheaper; its row 10 a collective and a direct exchange: one two-level
// all-to-all costs the same.
INSTANTIATE_TEST_SUITE_P(
    Vectors, PlanTable,
    ::testing::Values(
        PlanCase{"[dp, mp]", "[dp, -]", "AllGather(1,mp)", 8.2},
        PlanCase{"[dp, -]", "[dp, mp]", "Slice(1,mp)", 0},
        PlanCase{"[dp, -]", "[-, dp]", "AllToAll(dp:0->1)", 61.5},
        PlanCase{"[mp, -]", "[-, mp]", "AllToAll(mp:0->1)", 13.5},
        PlanCase{"[dp, mp]", "[mp, dp]", "Direct([dp, mp]->[mp, dp])", 41.0},
        PlanCase{"[(dp mp), -]", "[dp, -]", "AllGather(0,mp)", 8.2},
        PlanCase{"[(dp mp), -]", "[dp, mp]", "AllToAll(mp:0->1)", 5.6},
        PlanCase{"[(dp mp), -]", "[(mp dp), -]", "Direct([(dp mp), -]->[(mp dp), -])", 31.0},
        PlanCase{"[(dp mp), -]", "[mp, -]",
                 "AllToAll(mp:0->1), AllGather(0,dp), AllToAll(mp:1->0)", 112.0},
        PlanCase{"[(dp mp), -]", "[-, (dp mp)]", "AllToAll((dp mp):0->1)", 51.4},
        PlanCase{"[mp, -]", "[dp, -]", "Direct([mp, -]->[dp, -])", 13.5},
        PlanCase{"[-, -] +{dp mp}", "[-, -]",
                 "ReduceScatter(0,mp), AllReduce(dp), AllGather(0,mp)", 233.8},
        PlanCase{"[dp, -] +{mp}", "[dp, -]", "AllReduce(mp)", 16.5},
        PlanCase{"[dp, -] +{mp}", "[(dp mp), -]", "ReduceScatter(0,mp)", 8.2},
        PlanCase{"[-, -] +{dp mp}", "[(dp mp), -]", "ReduceScatter(0,(dp mp))", 116.9},
        PlanCase{"[-, -]", "[-, -] +{dp}", "KeepOnFirst(dp)", 0},
        PlanCase{"[-, -] +{dp}", "[-, -] +{dp mp}", "KeepOnFirst(mp)", 0},
        PlanCase{"[-, -] max{mp}", "[-, -]", "AllReduce(mp)", 6 + 41.9}));

TEST(Reshard, DirectExchangeMovesLittle) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  auto bytes = [&](const char* from, const char* to) {
    const Layout a = parse_layout(mesh, from), b = parse_layout(mesh, to);
    return DirectExchange(mesh, 2, {1024, 1024}, a, b).cost(two_speed_links(), 4);
  };
  EXPECT_EQ(bytes("[dp, mp]", "[mp, dp]").bytes, 524288);
  EXPECT_EQ(bytes("[(dp mp), -]", "[(mp dp), -]").bytes, 524288);
  EXPECT_EQ(bytes("[mp, -]", "[dp, -]").bytes, 1048576);
  EXPECT_NEAR(bytes("[(dp mp), -]", "[mp, -]").seconds * 1e6, 123.9, 0.1);
  EXPECT_NEAR(bytes("[(dp mp), -]", "[-, (dp mp)]").seconds * 1e6, 75.7, 0.1);
}

TEST(Reshard, SendersAndReceiversOfADirectExchangeAgree) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 2}, {"c", 2}});
  const DirectExchange direct(mesh, 2, {8, 8}, parse_layout(mesh, "[(a b), c]"),
                              parse_layout(mesh, "[c, a]"));
  size_t received = 0, sent = 0;
  for (int rank = 0; rank < 8; ++rank) {
    for (const Piece& piece : direct.incoming(rank)) {
      if (piece.from == rank) continue;
      ++received;
      const auto out = direct.outgoing(piece.from);
      EXPECT_TRUE(std::any_of(out.begin(), out.end(), [&](const Piece& p) {
        return p.from == rank && p.box == piece.box;
      }));
    }
    sent += direct.outgoing(rank).size();
  }
  EXPECT_EQ(received, sent);
}

TEST(Reshard, CollectivePricesOnTwoNodesOfEight) {
  LinkModel links;
  links.ranks_per_node = 8;
  links.inter_latency = 10e-6;
  links.inter_bandwidth = 25e9;
  links.intra_latency = 3e-6;
  links.intra_bandwidth = 200e9;
  const Mesh mesh = make_mesh({{"x", 16}});
  const int64_t mib = 1 << 20;
  auto micros = [&](ReshardStep::Kind kind, int64_t s) {
    return collective_cost(mesh, links, kind, {0}, s).seconds * 1e6;
  };
  EXPECT_NEAR(micros(ReshardStep::Kind::kAllGather, mib), 146.3, 0.1);
  EXPECT_NEAR(micros(ReshardStep::Kind::kAllReduce, 16 * mib), 292.7, 0.1);
  EXPECT_NEAR(micros(ReshardStep::Kind::kAllToAll, 16 * mib), 415.5, 0.1);
  // One ring over the slow link, when every rank is alone on its node.
  links.ranks_per_node = 1;
  EXPECT_NEAR(micros(ReshardStep::Kind::kAllGather, mib), 779.1, 0.1);
  EXPECT_NEAR(micros(ReshardStep::Kind::kAllReduce, 16 * mib), 1558.3, 0.1);
}

/// All layouts of a matrix on three axes, with pending sums if asked.
std::vector<Layout> all_layouts(size_t axes, bool with_partial) {
  std::vector<Layout> layouts{replicated(2)};
  for (size_t a = 0; a < axes; ++a) {
    std::vector<Layout> more;
    for (const Layout& layout : layouts) {
      more.push_back(layout);
      for (size_t d = 0; d < 2; ++d) {
        for (size_t at = 0; at <= layout.dims[d].size(); ++at) {
          Layout split = layout;
          split.dims[d].insert(split.dims[d].begin() + at, static_cast<Axis>(a));
          more.push_back(split);
        }
      }
      if (with_partial) {
        Layout pending = layout;
        pending.partial.push_back(static_cast<Axis>(a));
        more.push_back(pending);
      }
    }
    layouts = more;
  }
  return layouts;
}

/// Gathers everything, then slices: what any planner must beat.
double gather_all_seconds(const Mesh& mesh, const LinkModel& links, const Shape& shape,
                          const Layout& from, const Layout& to) {
  return plan_reshard(mesh, links, shape, DType::kF32, from, replicated(2)).seconds +
         plan_reshard(mesh, links, shape, DType::kF32, replicated(2), to).seconds;
}

TEST(Reshard, EveryPairOfLayoutsReachesItsTarget) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 2}, {"c", 2}});
  LinkModel links;
  links.ranks_per_node = 4;
  const Shape shape = {8, 8};
  std::vector<double> global(64);
  std::iota(global.begin(), global.end(), 1);
  ReshardPlanner planner(mesh, links);
  const auto layouts = all_layouts(3, true);
  ASSERT_GT(layouts.size(), 90u);
  double planning = 0;
  for (const Layout& from : layouts) {
    const RankArrays start = scatter(mesh, from, shape, global);
    for (const Layout& to : layouts) {
      const auto before = std::chrono::steady_clock::now();
      const ReshardPlan& plan = planner.plan(shape, DType::kF32, from, to);
      planning += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
      RankArrays arrays = start;
      Layout at = from;
      for (const ReshardStep& step : plan.steps) {
        ASSERT_EQ(at, step.before);
        arrays = apply_step(mesh, step, shape, arrays, links.ranks_per_node);
        at = step.after;
      }
      ASSERT_EQ(at, to) << to_string(mesh, from) << " -> " << to_string(mesh, to);
      ASSERT_EQ(materialise(mesh, to, shape, arrays), global)
          << to_string(mesh, from) << " -> " << to_string(mesh, to) << ": "
          << to_string(mesh, plan);
      if (from.partial.empty() && to.partial.empty()) {
        const double direct = DirectExchange(mesh, 4, shape, from, to).cost(links, 4).seconds;
        if (from != to) {
          EXPECT_LE(plan.seconds, direct + 1e-9) << to_string(mesh, plan);
        }
        EXPECT_LE(plan.seconds, gather_all_seconds(mesh, links, shape, from, to) + 1e-9);
      }
    }
  }
  EXPECT_LT(planning / static_cast<double>(layouts.size() * layouts.size()), 1e-3);
}

TEST(Reshard, SizesThatDoNotDivideAreNotProposed) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 4}});
  // The first dim could only be cut by a; the way from dim 1 must not pass through dim 0 on b.
  const ReshardPlan plan =
      plan_reshard(mesh, {}, {2, 8}, DType::kF32, parse_layout(mesh, "[-, (a b)]"),
                   parse_layout(mesh, "[-, (b a)]"));
  for (const ReshardStep& step : plan.steps) {
    EXPECT_NO_THROW(check_layout(mesh, step.after, {2, 8}, "state"));
  }
  EXPECT_EQ(plan.steps.back().after, parse_layout(mesh, "[-, (b a)]"));
}

TEST(Reshard, NeighboursOnOneDimBecomeOneStep) {
  const Mesh mesh = make_mesh({{"x", 2}, {"y", 2}});
  LinkModel links;
  links.ranks_per_node = 4;
  auto text = [&](const char* from, const char* to) {
    return to_string(mesh, plan_reshard(mesh, links, {1024, 1024}, DType::kF32,
                                        parse_layout(mesh, from), parse_layout(mesh, to)));
  };
  EXPECT_EQ(text("[(x y), -]", "[-, -]"), "AllGather(0,(x y))");
  EXPECT_EQ(text("[-, -]", "[(x y), -]"), "Slice(0,(x y))");
  EXPECT_EQ(text("[-, -]", "[-, -] +{x y}"), "KeepOnFirst((x y))");
  EXPECT_EQ(text("[-, -] +{x y}", "[(x y), -]"), "ReduceScatter(0,(x y))");
  EXPECT_EQ(text("[(x y), -]", "[-, (x y)]"), "AllToAll((x y):0->1)");
}

TEST(Reshard, WhatStaysInPlaceIsNotTouched) {
  const Mesh mesh = make_mesh({{"dp", 64}, {"cp", 2}, {"tp", 8}});
  const ReshardPlan plan =
      plan_reshard(mesh, {}, {64, 4096, 7168}, DType::kBF16, parse_layout(mesh, "[dp, (cp tp), -]"),
                   parse_layout(mesh, "[dp, cp, -]"));
  EXPECT_EQ(to_string(mesh, plan), "AllGather(1,tp)");
  EXPECT_EQ(plan.bytes, int64_t{4096 / 16} * 7168 * 2 * 7);
}

}  // namespace
}  // namespace moetrain
