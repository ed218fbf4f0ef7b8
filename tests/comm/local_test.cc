// The local and the single fabric keep every promise; a failing rank ends the others.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "comm/conformance.h"

namespace moetrain {
namespace {

struct Shape {
  int ranks, ranks_per_node;
};

class LocalFabricTest : public testing::TestWithParam<Shape> {};

TEST_P(LocalFabricTest, KeepsItsPromises) {
  const auto [ranks, ranks_per_node] = GetParam();
  run_local_ranks(ranks, ranks_per_node, test::check_fabric);
}

TEST_P(LocalFabricTest, AddsInDocumentedOrder) {
  const auto [ranks, ranks_per_node] = GetParam();
  run_local_ranks(ranks, ranks_per_node, test::check_summation_order);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LocalFabricTest,
                         testing::Values(Shape{1, 0}, Shape{2, 0}, Shape{3, 0}, Shape{2, 1},
                                         Shape{4, 2}, Shape{5, 2}, Shape{6, 4}, Shape{3, 1}),
                         [](const auto& info) {
                           return cat(info.param.ranks, "ranks_", info.param.ranks_per_node,
                                      "perNode");
                         });

TEST(SingleFabric, KeepsItsPromises) {
  const auto fabric = make_single_fabric();
  EXPECT_EQ(fabric->size(), 1);
  EXPECT_EQ(fabric->node_of(0), 0);
  test::check_fabric(*fabric);
}

TEST(SingleFabric, AbortEndsTheProcessWithTheMessage) {
  EXPECT_EXIT(make_single_fabric()->abort("disk full\ntry another", 3), testing::ExitedWithCode(3),
              "rank 0 of 1.*\n  disk full\n  try another\nThe job ends with exit code 3");
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(LocalFaults, AFailingRankEndsTheOthersWithItsOwnError) {
  for (int per_node : {0, 1, 2}) {
    const double took = seconds([&] {
      try {
        run_local_ranks(4, per_node, [](Fabric& fabric) {
          const auto group = fabric.make_group({0, 1, 2, 3}, "world");
          const auto lane = make_threaded_lane();
          float x = 1;
          group->all_reduce(&x, 1, DType::kF32, ReduceOp::kSum, *lane);
          lane->synchronize();
          if (fabric.rank() == 2) throw UserError("cannot read shard 7");
          group->all_reduce(&x, 1, DType::kF32, ReduceOp::kSum, *lane);
          EXPECT_THROW(lane->synchronize(), PeerFailure);
          fabric.barrier();
          ADD_FAILURE() << "the barrier cannot succeed";
        });
        ADD_FAILURE() << "no failure";
      } catch (const UserError& error) {
        EXPECT_STREQ(error.what(), "cannot read shard 7");
      }
    });
    EXPECT_LT(took, 5);
  }
}

TEST(LocalFaults, AbortUnwindsEveryRank) {
  try {
    run_local_ranks(3, 0, [](Fabric& fabric) {
      if (fabric.rank() == 1) fabric.abort("loss is not finite", kExitNumbers);
      fabric.barrier();
    });
    FAIL();
  } catch (const JobAborted& error) {
    EXPECT_STREQ(error.what(), "loss is not finite");
    EXPECT_EQ(error.exit_code(), kExitNumbers);
  }
}

TEST(LocalFaults, ARankThatLeavesEarlyIsNamed) {
  try {
    run_local_ranks(3, 2, [](Fabric& fabric) {
      if (fabric.rank() == 1) return;
      fabric.barrier();
    });
    FAIL();
  } catch (const PeerFailure& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 has left"), std::string::npos) << error.what();
  }
}

TEST(LocalFaults, DifferentVerbsAreFoundOut) {
  try {
    run_local_ranks(2, 0, [](Fabric& fabric) {
      const auto group = fabric.make_group({0, 1}, "tp");
      const auto lane = make_inline_lane();
      int64_t data[4] = {};
      if (fabric.rank() == 0) {
        group->all_reduce(data, 2, DType::kI64, ReduceOp::kSum, *lane);
      } else {
        group->all_gather(data, data + 2, 8, *lane);
      }
      lane->synchronize();
    });
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("group tp disagree"), std::string::npos)
        << error.what();
  }
}

TEST(LocalFaults, DifferentRaggedSizesAreFoundOut) {
  for (int per_node : {0, 1}) {
    EXPECT_THROW(run_local_ranks(2, per_node,
                                 [](Fabric& fabric) {
                                   const auto group = fabric.make_group({0, 1}, "ep");
                                   const auto lane = make_inline_lane();
                                   char in[64] = {}, out[64] = {};
                                   const int64_t sent = fabric.rank() == 0 ? 7 : 5;
                                   group->all_to_all_v(in, {sent, sent}, out, {sent, sent}, *lane);
                                   lane->synchronize();
                                 }),
                 InternalError);
  }
}

TEST(LocalFabric, CountsPayloadPerLinkClass) {
  run_local_ranks(4, 2, [](Fabric& fabric) {
    const auto group = fabric.make_group({0, 1, 2, 3}, "world");
    const auto lane = make_inline_lane();
    fabric.barrier();  // control data is not counted
    std::vector<char> in(400), out(400);
    group->all_to_all(in.data(), out.data(), 100, *lane);
    TrafficCounters t = fabric.traffic();
    EXPECT_EQ(t.intra_node_bytes, 100);
    EXPECT_EQ(t.intra_node_messages, 1);
    EXPECT_EQ(t.inter_node_bytes, 200);
    EXPECT_EQ(t.inter_node_messages, 2);
    // each rank's block crosses to the other node once, and is then shown to the neighbour there
    group->all_gather(in.data(), out.data(), 100, *lane);
    t = fabric.traffic();
    EXPECT_EQ(t.inter_node_bytes, 300);
    EXPECT_EQ(t.intra_node_bytes, 300);
    // two blocks of 8 floats for the neighbour to sum, one partial sum to the other node
    std::vector<float> send(32), recv(8);
    group->reduce_scatter(send.data(), recv.data(), 8, DType::kF32, ReduceOp::kSum, *lane);
    t = fabric.traffic();
    EXPECT_EQ(t.inter_node_bytes, 332);
    EXPECT_EQ(t.intra_node_bytes, 364);
    lane->synchronize();
  });
}

TEST(LocalFabric, NodesFollowRanksPerNode) {
  run_local_ranks(5, 2, [](Fabric& fabric) {
    EXPECT_EQ(fabric.node_of(0), 0);
    EXPECT_EQ(fabric.node_of(3), 1);
    EXPECT_EQ(fabric.node_of(4), 2);
  });
}

}  // namespace
}  // namespace moetrain
