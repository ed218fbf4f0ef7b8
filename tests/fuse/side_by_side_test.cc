// Which operators run side by side, and which must not.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/fuse/side_by_side.h"
#include "ops/basic.h"
#include "ops/local.h"
#include "ops/norm.h"
#include "ops/side_by_side.h"
#include "ops/update.h"
#include "tiny_model.h"

namespace moetrain::test {
namespace {

int count_groups(const Graph& graph) {
  int n = 0;
  for (const Node& node : graph.nodes) n += node.op == &ops::kSideBySide;
  return n;
}

/// Norms of x1 and x2, a norm of the first one's result, and an update that reads what another overwrites.
struct Independent {
  Graph g;
  Value gain, x1, x2;
  Independent() {
    gain = ops::state(g, "gain", DType::kF32, {4});
    x1 = ops::input(g, "x1", DType::kF32, {8, 4});
    x2 = ops::input(g, "x2", DType::kF32, {8, 4});
  }
  Value norm(Value x, const std::string& name) { return ops::rms_norm(g, x, gain, 1e-6, DType::kF32, name); }
  int groups() {
    LocalGraph local;
    local.graph = g;
    FusionReport report;
    const LocalGraph fused = fuse_side_by_side(local, report);
    verify(fused.graph);
    return count_groups(fused.graph);
  }
};

TEST(SideBySidePass, JoinsWhatDoesNotNeedOneAnother) {
  Independent i;
  const Value a = i.norm(i.x1, "a"), b = i.norm(i.x2, "b");
  i.g.mark_output("y", ops::add(i.g, a, b, "sum"));
  EXPECT_EQ(i.groups(), 1);
}

TEST(SideBySidePass, ChainsStay) {
  Independent i;
  i.g.mark_output("y", i.norm(i.norm(i.x1, "a"), "b"));
  EXPECT_EQ(i.groups(), 0);
}

TEST(SideBySidePass, NothingPassesACollectiveOrAnotherLayer) {
  Independent i;
  const Value a = i.norm(i.x1, "a");
  const Value moved = i.g.add(ops::kAllReduce, {a}, {{"axes", std::vector<int64_t>{0}}}, "moved");
  const Value b = i.norm(i.x2, "b");
  i.g.tag.layer = 1;
  const Value c = i.norm(i.x1, "c");
  for (Value v : {moved, b, c}) i.g.mark_output("y", v);
  EXPECT_EQ(i.groups(), 0);
}

TEST(SideBySidePass, NobodyWaitsForATransferThatOnlyAnotherNeeds) {
  for (bool both : {false, true}) {
    Independent i;
    const Value moved = i.g.add(ops::kAllReduce, {i.x1}, {{"axes", std::vector<int64_t>{0}}}, "moved");
    const Value a = i.norm(moved, "a"), b = i.norm(both ? moved : i.x2, "b");
    for (Value v : {a, b}) i.g.mark_output("y", v);
    EXPECT_EQ(i.groups(), both ? 1 : 0);
  }
}

TEST(SideBySidePass, WhatRunsNothingIsNoPart) {
  Independent i;
  const Value a = ops::reshape(i.g, i.x1, {4, 8}), b = ops::reshape(i.g, i.x2, {4, 8});
  Attrs plain{{"dim", int64_t{0}}, {"plain", int64_t{1}}};
  const Value c = i.g.add(ops::kUnstack, {i.x1}, plain), d = i.g.add(ops::kUnstack, {i.x2}, plain);
  for (Value v : {a, b, c, d}) i.g.mark_output("y", v);
  EXPECT_EQ(i.groups(), 0);
}

TEST(SideBySidePass, WhoReadsComesBeforeWhoOverwrites) {
  Independent i;
  const Value other = ops::state(i.g, "other", DType::kF32, {4});
  const Value before = i.norm(i.x1, "before");  // reads gain
  const Value now = i.g.add(ops::kAssign, {i.gain, other}, {}, "assign");  // overwrites it
  for (Value v : {before, now}) i.g.mark_output("y", v);
  EXPECT_EQ(i.groups(), 0);
}

TEST(SideBySidePass, LargeOnesKeepAllCores) {
  Independent i;
  const Value big1 = ops::input(i.g, "big1", DType::kF32, {1 << 20, 4});
  const Value big2 = ops::input(i.g, "big2", DType::kF32, {1 << 20, 4});
  const Value a = i.norm(big1, "a"), b = i.norm(big2, "b");
  for (Value v : {a, b}) i.g.mark_output("y", v);
  EXPECT_EQ(i.groups(), 0);
}

TEST(SideBySidePass, IsSwitchedOffByName) {
  CompileRequest request;
  EXPECT_GT(count_groups(compile(training_graph(tiny_model(), DType::kBF16), request).local.graph), 0);
  request.fusion_off = {"side_by_side"};
  EXPECT_EQ(count_groups(compile(training_graph(tiny_model(), DType::kBF16), request).local.graph), 0);
}

}  // namespace
}  // namespace moetrain::test
