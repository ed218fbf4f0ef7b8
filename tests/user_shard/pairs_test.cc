// Every pair of layouts of a 2x2x2 mesh, pending sums included, redistributed by the real runtime.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/basic.h"
#include "shard/meshes.h"
#include "user_shard/run_graph.h"

namespace moetrain {
namespace {

/// All layouts of a tensor of two dims on three axes: each axis on a dim (at any place), copied or pending.
std::vector<Layout> all_layouts(bool pending) {
  std::vector<Layout> list{replicated(2)};
  for (Axis a = 0; a < 3; ++a) {
    std::vector<Layout> more = list;
    for (const Layout& layout : list) {
      for (size_t d = 0; d < 2; ++d) {
        for (size_t at = 0; at <= layout.dims[d].size(); ++at) {
          more.push_back(layout);
          auto& axes = more.back().dims[d];
          axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(at), a);
        }
      }
      if (!pending) continue;
      more.push_back(layout);
      more.back().partial.push_back(a);
    }
    list = more;
  }
  return list;
}

NodeSharding placed(std::vector<Layout> operands, const Layout& result) {
  NodeSharding node;
  node.layouts = {std::move(operands), {result}};
  return node;
}

TEST(AllPairs, ArriveOnEightRanksAndStayWithinMemory) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 2}, {"c", 2}});
  LinkModel links;
  links.ranks_per_node = 4;
  const std::vector<Layout> targets = all_layouts(false);
  const std::vector<Layout> sources = all_layouts(true);
  ASSERT_EQ(targets.size(), 49u);
  ASSERT_EQ(sources.size(), 92u);
  size_t pairs = 0;
  for (const Layout& source : sources) {
    Graph graph;
    ShardingResult sharding;
    const Value x = ops::input(graph, "x", DType::kF32, {8, 8});
    sharding.nodes.push_back(placed({}, source));
    for (size_t t = 0; t < targets.size(); ++t) {
      const Value y = ops::scale(graph, x, 1.0 + static_cast<double>(t));
      sharding.nodes.push_back(placed({targets[t]}, targets[t]));
      graph.mark_output("y" + std::to_string(t), y);
    }
    const Tensors leaves = leaf_values(graph);
    const GraphRun run = run_graph(graph, sharding, mesh, links, leaves);
    expect_same(expected(graph, leaves), run);
    if (HasFatalFailure()) FAIL() << "from " << to_string(mesh, source);
    for (const ReshardNote& note : run.reshards) {
      auto local = [&](const Layout& l) {
        return numel(local_shape(mesh, l, Type{note.dtype, note.shape}));
      };
      const int64_t bound = 4 * std::max(local(note.from), local(note.to));
      for (const ReshardStep& step : note.plan.steps) {
        EXPECT_LE(local(step.after), bound) << to_string(mesh, note.plan);
      }
    }
    pairs += targets.size();
  }
  EXPECT_EQ(pairs, 92u * 49u);
}

}  // namespace
}  // namespace moetrain
