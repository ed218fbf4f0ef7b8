// The four transports give the results of one rank, to the bit on integers, and send what they say.
#include <gtest/gtest.h>

#include <functional>

#include "base/random.h"
#include "dispatch/moe_run.h"

namespace moetrain::dispatch_test {
namespace {

using Floats = std::vector<float>;

/// A case worked by hand: four ranks on two nodes, one expert each.
MoeCase design_case() {
  MoeCase c;
  c.b = 4;
  c.s = 2;
  c.h = 1;
  c.k = 2;
  c.experts = 4;
  c.x = {1, 2, 3, 4, 5, 6, 7, 8};
  c.idx = {0, 2, 0, 1, 0, 3, 2, 3, 0, 1, 1, 2, 3, 0, 0, 2};
  for (int t = 0; t < 8; ++t) c.weight.insert(c.weight.end(), {0.75f, 0.25f});
  c.w = {2, 3, 5, 7};
  c.dy = Floats(8, 1);
  return c;
}

int64_t rows_sent(const MoeResult& r, const std::string& name, bool inter, int rank,
                  int64_t bytes) {
  const auto at = r.rows[rank].find(name);
  if (at == r.rows[rank].end()) return 0;
  return (inter ? at->second.inter_bytes : at->second.intra_bytes) / bytes;
}

int64_t rows_sent(const MoeResult& r, const std::string& name, bool inter) {
  int64_t rows = 0;
  for (size_t rank = 0; rank < r.rows.size(); ++rank) {
    rows += rows_sent(r, name, inter, static_cast<int>(rank), sizeof(float));
  }
  return rows;
}

class Transports : public ::testing::TestWithParam<Transport> {};

TEST_P(Transports, TheDesignsVectorExactly) {
  const MoeResult r = run_moe(design_case(), flat_mesh(4, 2), GetParam());
  EXPECT_EQ(r.outputs.at("y"), (Floats{2.75, 4.5, 9.75, 22, 11.25, 21, 40.25, 22}));
  EXPECT_EQ(r.outputs.at("dx"), (Floats{2.75, 2.25, 3.25, 5.5, 2.25, 3.5, 5.75, 2.75}));
  EXPECT_EQ(r.outputs.at("dw"), (Floats{16, 6.25, 6.75, 7}));
  EXPECT_EQ(r.outputs.at("dweight"),
            (Floats{2, 5, 4, 6, 6, 21, 20, 28, 10, 15, 18, 30, 49, 14, 16, 40}));
  ASSERT_EQ(r.locals[0].dispatches.size(), 1u);
  EXPECT_EQ(r.locals[0].dispatches[0].choice.transport, GetParam());
  EXPECT_EQ(r.locals[0].dispatches[0].shape.nodes, 2);
}

TEST(Rows, TheDesignsCounts) {
  const MoeMesh mesh = flat_mesh(4, 2);
  const MoeResult plain = run_moe(design_case(), mesh, Transport::kAllToAll);
  EXPECT_EQ(rows_sent(plain, "moe.dispatch.rows", true), 9);
  EXPECT_EQ(rows_sent(plain, "moe.dispatch.rows", false), 3);
  const MoeResult gathered = run_moe(design_case(), mesh, Transport::kAllGather);
  EXPECT_EQ(rows_sent(gathered, "moe.dispatch.rows", true), 0);
  EXPECT_EQ(rows_sent(gathered, "moe.dispatch.rows", false), 8);  // node 0: 6, node 1: 2
  EXPECT_EQ(rows_sent(gathered, "moe.dispatch.rows", false, 0, 4) +
                rows_sent(gathered, "moe.dispatch.rows", false, 1, 4),
            6);
  const MoeResult dedup = run_moe(design_case(), mesh, Transport::kDedup);
  EXPECT_EQ(rows_sent(dedup, "moe.dispatch.out", true), 7);
  EXPECT_EQ(rows_sent(dedup, "moe.dispatch.rows", false), 8);
  EXPECT_EQ(rows_sent(dedup, "moe.combine.back", true), 7);
}

MoeCase random_case(int64_t b, int64_t s, int64_t experts, int64_t k, uint64_t seed,
                    const std::function<bool(int64_t token, int64_t expert)>& allowed) {
  MoeCase c;
  c.b = b;
  c.s = s;
  c.h = 5;
  c.k = k;
  c.experts = experts;
  uint64_t state = seed;
  auto next = [&](int64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  };
  for (int64_t t = 0; t < b * s; ++t) {
    std::vector<int32_t> open;
    for (int64_t e = 0; e < experts; ++e) {
      if (allowed(t, e)) open.push_back(static_cast<int32_t>(e));
    }
    for (int64_t j = 0; j < k; ++j) {
      if (open.empty()) {
        c.idx.push_back(-1);
      } else {
        const int64_t at = next(static_cast<int64_t>(open.size()));
        c.idx.push_back(open[at]);
        open.erase(open.begin() + at);
      }
      c.weight.push_back(static_cast<float>(next(5) - 2));
    }
    for (int64_t i = 0; i < c.h; ++i) {
      c.x.push_back(static_cast<float>(next(9) - 4));
      c.dy.push_back(static_cast<float>(next(9) - 4));
    }
  }
  for (int64_t i = 0; i < experts * c.h * c.h; ++i) c.w.push_back(static_cast<float>(next(7) - 3));
  return c;
}

struct Routing {
  const char* name;
  std::function<bool(int64_t, int64_t)> allowed;
};

std::vector<Routing> routings() {
  return {
      {"all experts", [](int64_t, int64_t) { return true; }},
      {"experts without tokens", [](int64_t, int64_t e) { return e % 2 == 1; }},
      {"all on one expert", [](int64_t, int64_t e) { return e == 5; }},
      {"all on one rank", [](int64_t, int64_t e) { return e >= 6; }},
      {"tokens per rank from none to all", [](int64_t t, int64_t) { return t % 12 < t / 12 * 4; }},
      {"nothing at all", [](int64_t, int64_t) { return false; }}};
}

TEST_P(Transports, AnyRoutingOnAnyNodes) {
  for (const Routing& routing : routings()) {
    const MoeCase c = random_case(4, 12, 8, 3, 7, routing.allowed);
    const MoeResult whole = run_whole(c);
    for (int per_node : {1, 2, 4}) {
      const MoeResult r = run_moe(c, flat_mesh(4, per_node), GetParam());
      for (const char* what : {"y", "dx", "dweight", "dw"}) {
        EXPECT_EQ(r.outputs.at(what), whole.outputs.at(what))
            << what << ", " << routing.name << ", " << per_node << " ranks per node";
      }
    }
  }
}

TEST_P(Transports, TokensCopiedOverSomeExpertAxes) {
  const MoeCase c = random_case(4, 6, 16, 4, 11, [](int64_t, int64_t) { return true; });
  const MoeResult whole = run_whole(c);
  MoeMesh m;
  m.mesh.atoms = {{"ep", 4}, {"tp", 2}};
  m.mesh.names = {{"ep", {0}}, {"tp", {1}}};
  m.expert_axes = {"ep", "tp"};
  m.batch_axes = {"ep"};
  for (int per_node : {2, 4, 8}) {
    m.ranks_per_node = per_node;
    const MoeResult r = run_moe(c, m, GetParam());
    for (const char* what : {"y", "dx", "dweight", "dw"}) {
      EXPECT_EQ(r.outputs.at(what), whole.outputs.at(what)) << what << ", " << per_node;
    }
  }
}

TEST_P(Transports, NarrowRows) {
  MoeCase c = random_case(4, 8, 8, 3, 3, [](int64_t, int64_t) { return true; });
  c.dtype = DType::kBF16;
  for (float& v : c.w) v = v > 0 ? 1 : v < 0 ? -1 : 0;  // sums stay exact in eight bits
  for (float& v : c.dy) v = v > 0 ? 1 : 0;
  const MoeResult whole = run_whole(c);
  const MoeResult r = run_moe(c, flat_mesh(4, 2), GetParam());
  for (const char* what : {"y", "dx", "dweight", "dw"}) {
    EXPECT_EQ(r.outputs.at(what), whole.outputs.at(what)) << what;
  }
}

/// Collectives of one layer whose payload is counts or routing, by the way instructions are named.
int count_exchanges(const Plan& plan) {
  int n = 0;
  for (const LedgerLine& line : ledger(plan, consecutive_nodes(2))) {
    n += line.name.find(".counts") != std::string::npos;
  }
  return n;
}

TEST_P(Transports, OneCountExchangeServesForwardAndBackward) {
  const MoeResult r = run_moe(design_case(), flat_mesh(4, 2), GetParam());
  for (const Plan& plan : r.plans) {
    EXPECT_EQ(count_exchanges(plan), 1);
    int waits = 0;
    for (const Segment& s : plan.segments) {
      for (const Instruction& i : s.instructions) waits += std::holds_alternative<Bind>(i.what);
    }
    EXPECT_EQ(waits, 1);
  }
}

/// The plan's prediction where sizes are static plus the ragged instructions' own counts = what the
/// fabric saw, bytes and messages.
TEST_P(Transports, TheLedgerIsWhatWasSent) {
  for (int per_node : {1, 2, 4}) {
    const MoeCase c = random_case(4, 64, 8, 3, 19, [](int64_t, int64_t) { return true; });
    const MoeResult r = run_moe(c, flat_mesh(4, per_node), GetParam());
    for (int rank = 0; rank < 4; ++rank) {
      LinkTraffic exact;
      int64_t expected = 0, real = 0;
      for (const LedgerLine& line : ledger(r.plans[rank], consecutive_nodes(per_node))) {
        if (!line.ragged) {
          exact += line.sent;
          continue;
        }
        const LinkTraffic& sent = r.rows[rank].at(line.name);
        exact += sent;
        expected += line.sent.inter_bytes + line.sent.intra_bytes;
        real += sent.inter_bytes + sent.intra_bytes;
      }
      const TrafficCounters& seen = r.traffic[rank];
      EXPECT_EQ(exact.inter_bytes, seen.inter_node_bytes) << per_node;
      EXPECT_EQ(exact.intra_bytes, seen.intra_node_bytes) << per_node;
      EXPECT_EQ(exact.inter_messages, seen.inter_node_messages) << per_node;
      EXPECT_EQ(exact.intra_messages, seen.intra_node_messages) << per_node;
      // Ragged lines are predicted for even routing; this routing is near it.
      EXPECT_NEAR(static_cast<double>(real), static_cast<double>(expected),
                  0.15 * static_cast<double>(expected) + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Transports, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Auto, TakesWhatTheLinksMakeCheapest) {
  MoeCase c = random_case(8, 64, 16, 8, 5, [](int64_t, int64_t) { return true; });
  LinkModel links;
  links.inter_latency = links.intra_latency = 0;
  auto chosen = [&](int per_node) {
    return compile_moe(c, flat_mesh(8, per_node), 3, std::nullopt, links).local.dispatches.at(0);
  };
  EXPECT_EQ(chosen(8).choice.transport, Transport::kAllToAll);
  EXPECT_EQ(chosen(4).choice.transport, Transport::kAllGather);  // two nodes, eight experts a token
  EXPECT_TRUE(chosen(4).chosen);
  EXPECT_NE(to_string(chosen(4)).find("allgather (cheapest)  2 nodes x 4 ranks"), std::string::npos)
      << to_string(chosen(4));
  // The same on every rank, and the same every time.
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(
        to_string(compile_moe(c, flat_mesh(8, 2), rank, std::nullopt, links).local.dispatches[0]),
        to_string(chosen(2)));
  }
}

TEST(Auto, RefusesNodesThatDoNotDivideTheGroup) {
  const MoeCase c = random_case(4, 2, 8, 2, 5, [](int64_t, int64_t) { return true; });
  EXPECT_THROW(compile_moe(c, flat_mesh(4, 3), 0, Transport::kDedup), std::exception);
  EXPECT_NO_THROW(compile_moe(c, flat_mesh(4, 3), 0, Transport::kAllToAll));
  EXPECT_NO_THROW(compile_moe(c, flat_mesh(4, 3), 0, std::nullopt));
}

}  // namespace
}  // namespace moetrain::dispatch_test
