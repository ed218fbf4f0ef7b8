// The volumes and crossovers of the transports against worked numbers, and the choice they make.
#include <gtest/gtest.h>

#include "compile/shard/dispatch_cost.h"

namespace moetrain {
namespace {

DispatchShape shape_of(int64_t nodes, int64_t limit = 0) {
  DispatchShape s;
  s.nodes = nodes;
  s.per_node = 8;
  s.tokens = 4096;
  s.top_k = 8;
  s.experts = 256;
  s.local_experts = 256 / (nodes * 8);
  s.row_bytes = 7168 * 2;
  s.node_limit = limit;
  return s;
}

TEST(Volumes, InterNodeRowsPerToken) {
  struct Row {
    int64_t nodes;
    double a, once, gather, dedup, limited;
  };
  for (const Row& row : {Row{2, 4.00, 3.26, 1, 1.00, 1.00}, Row{4, 6.00, 5.45, 3, 2.71, 2.71},
                         Row{8, 7.00, 6.72, 7, 4.63, 3.50}, Row{16, 7.50, 7.40, 15, 6.12, 3.75},
                         Row{32, 7.75, 7.75, 31, 7.04, 3.88}}) {
    const DispatchShape s = shape_of(row.nodes);
    EXPECT_NEAR(row_volume(Transport::kAllToAll, s).inter, row.a, 0.005) << row.nodes;
    EXPECT_NEAR(row_volume(Transport::kAllToAllOnce, s).inter, row.once, 0.005) << row.nodes;
    EXPECT_NEAR(row_volume(Transport::kAllGather, s).inter, row.gather, 0.005) << row.nodes;
    EXPECT_NEAR(row_volume(Transport::kDedup, s).inter, row.dedup, 0.0051) << row.nodes;
    EXPECT_NEAR(row_volume(Transport::kDedup, shape_of(row.nodes, 4)).inter, row.limited, 0.0051);
    EXPECT_DOUBLE_EQ(row_volume(Transport::kAllToAll, s).intra,
                     8.0 * 7 / static_cast<double>(8 * row.nodes));
    EXPECT_DOUBLE_EQ(row_volume(Transport::kDedup, s).intra, 7);
    EXPECT_DOUBLE_EQ(row_volume(Transport::kAllGather, s).intra, 7);
  }
}

// Every choice of 2 of 4 groups of 3 experts and of 4 of their 6 experts, counted out.
TEST(Volumes, GroupsLimitWhereRowsGo) {
  DispatchShape s;
  s.top_k = 4;
  s.experts = 12;
  s.groups = 4;
  s.top_groups = 2;
  std::vector<int> hits(13);
  int ways = 0;
  for (int first = 0; first < 4; ++first) {
    for (int second = first + 1; second < 4; ++second) {
      for (int left = 0; left < 6; ++left) {  // the two of the six that are not chosen
        for (int out = left + 1; out < 6; ++out) {
          int lowest = 12;
          for (int i = 5; i >= 0; --i) {
            if (i != left && i != out) lowest = 3 * (i < 3 ? first : second) + i % 3;
          }
          for (int some = lowest + 1; some <= 12; ++some) ++hits[some];
          ++ways;
        }
      }
    }
  }
  for (int some = 1; some <= 12; ++some) {
    EXPECT_NEAR(hit_probability(s, some), static_cast<double>(hits[some]) / ways, 1e-9) << some;
  }
  // Four nodes with two of eight groups each, four kept: both of a node's in 15 of 70 cases, one in 40,
  // and then its 32 of the 128 experts are missed by all eight choices in 9.3 % of them.
  DispatchShape v3 = shape_of(4, 4);
  v3.groups = 8;
  v3.top_groups = 4;
  EXPECT_NEAR(expected_nodes(v3), 4 * (15.0 / 70 * 0.997 + 40.0 / 70 * 0.907), 0.01);
  DispatchShape many = v3;  // more groups than factorials that doubles hold
  many.experts = 8192;
  many.local_experts = 8192 / 32;
  many.groups = 4096;
  many.top_groups = 2048;
  EXPECT_GT(hit_probability(many, many.local_experts), 0.1);
  EXPECT_LT(hit_probability(many, many.local_experts), 0.5);
  EXPECT_LT(row_volume(Transport::kDedup, v3).inter, row_volume(Transport::kDedup, shape_of(4, 4)).inter);
}

/// Volume per token over free links of the given ratio, for any (real) number of nodes.
bool gather_wins(int64_t nodes, double ratio) {
  LinkModel links;
  links.inter_bandwidth = 1e9;
  links.intra_bandwidth = 1e9 / ratio;
  const DispatchShape s = shape_of(nodes);
  return transfer_seconds(row_volume(Transport::kAllGather, s), s, links) <
         transfer_seconds(row_volume(Transport::kAllToAll, s), s, links);
}

TEST(Volumes, CrossoversOfGatherAgainstAllToAll) {
  // N < k (1 - ratio (R - 1) / R): 8 by volume alone, 7.125 at 1/8, 5.8125 at 1/3.2. Node counts
  // need not divide the experts here.
  DispatchShape s = shape_of(1);
  s.experts = 256 * 35;  // divisible by all node counts below
  s.top_k = 8;
  auto wins = [&](int64_t nodes, double ratio) {
    s.nodes = nodes;
    s.local_experts = s.experts / (8 * nodes);
    LinkModel links;
    links.inter_bandwidth = 1e9;
    links.intra_bandwidth = 1e9 / ratio;
    return transfer_seconds(row_volume(Transport::kAllGather, s), s, links) <
           transfer_seconds(row_volume(Transport::kAllToAll, s), s, links);
  };
  EXPECT_TRUE(wins(7, 1e-9));
  EXPECT_FALSE(wins(8, 1e-9));
  EXPECT_TRUE(wins(7, 1.0 / 8));
  EXPECT_FALSE(wins(8, 1.0 / 8));
  EXPECT_TRUE(wins(5, 1 / 3.2));
  EXPECT_FALSE(wins(7, 1 / 3.2));
  EXPECT_TRUE(gather_wins(4, 1 / 3.2));
  EXPECT_FALSE(gather_wins(8, 1 / 3.2));
}

TEST(Choice, GatherUpToFourNodesThenOncePerNode) {
  LinkModel links;
  links.inter_bandwidth = 50e9;
  links.intra_bandwidth = 160e9;
  auto choice = [&](int64_t nodes, int64_t limit) {
    return choose_transport(shape_of(nodes, limit), links).transport;
  };
  EXPECT_EQ(choice(1, 0), Transport::kAllToAll);
  EXPECT_EQ(choice(2, 0), Transport::kAllGather);
  EXPECT_EQ(choice(4, 0), Transport::kAllGather);
  EXPECT_EQ(choice(8, 0), Transport::kDedup);
  EXPECT_EQ(choice(8, 4), Transport::kDedup);
  EXPECT_EQ(choice(16, 4), Transport::kDedup);
  DispatchShape few = shape_of(8);
  few.top_k = 2;  // few rows to spare, but 56 messages against 7
  EXPECT_EQ(choose_transport(few, links).transport, Transport::kDedup);
  links.inter_latency = 0;
  EXPECT_EQ(choose_transport(few, links).transport, Transport::kAllToAllOnce);
}

TEST(Choice, NamesRoundTrip) {
  for (Transport t : kTransports) EXPECT_EQ(transport_named(name_of(t)), t);
  EXPECT_FALSE(transport_named("auto").has_value());
}

}  // namespace
}  // namespace moetrain
