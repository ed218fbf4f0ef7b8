// The strategies on real model graphs: what lands where, which collectives remain, and how long it takes.
#include "compile/strategy/strategies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/error.h"
#include "graph/op.h"
#include "compile/strategy/user.h"
#include "model/deepseek.h"

namespace moetrain {
namespace {

ModelConfig tiny_model() {
  ModelConfig m;
  m.vocab_size = 64;
  m.hidden_size = 64;
  m.intermediate_size = 96;
  m.moe_intermediate_size = 32;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 4;
  m.n_routed_experts = 8;
  m.kv_lora_rank = 16;
  m.q_lora_rank = 32;
  m.qk_rope_head_dim = 8;
  m.v_head_dim = 16;
  m.qk_nope_head_dim = 16;
  m.n_group = 2;
  m.topk_group = 1;
  m.num_experts_per_tok = 2;
  m.first_k_dense_replace = 1;
  m.num_nextn_predict_layers = 1;
  return m;
}

ModelConfig deepseek_v3() {
  ModelConfig m;
  m.vocab_size = 129280;
  m.hidden_size = 7168;
  m.intermediate_size = 18432;
  m.moe_intermediate_size = 2048;
  m.num_hidden_layers = 61;
  m.num_attention_heads = 128;
  m.n_routed_experts = 256;
  m.kv_lora_rank = 512;
  m.q_lora_rank = 1536;
  m.qk_rope_head_dim = 64;
  m.v_head_dim = 128;
  m.qk_nope_head_dim = 128;
  m.n_group = 8;
  m.topk_group = 4;
  m.num_experts_per_tok = 8;
  m.first_k_dense_replace = 3;
  m.num_nextn_predict_layers = 1;
  return m;
}

struct Sharded {
  Graph graph;
  Mesh mesh;
  ShardingResult result;

  int node(const std::string& name) const {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].name == name) return static_cast<int>(i);
    }
    ADD_FAILURE() << "no node " << name;
    return 0;
  }
  std::string out(const std::string& name, size_t r = 0) const {
    return to_string(mesh, result.nodes[node(name)].layouts.results[r]);
  }
  std::string in(const std::string& name, size_t k) const {
    return to_string(mesh, result.nodes[node(name)].layouts.operands[k]);
  }
  /// "RESHARD producer -> consumer: plan" of every edge of one phase that communicates.
  std::vector<std::string> edges(Phase phase) const {
    std::vector<std::string> list;
    ReshardPlanner planner(mesh, {});
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (size_t k = 0; k < graph.nodes[n].inputs.size(); ++k) {
        const Value v = graph.nodes[n].inputs[k];
        const Layout& from = result.nodes[v.node].layouts.results[v.output];
        const Layout& to = result.nodes[n].layouts.operands[k];
        const Type& type = graph.type(v);
        if (type.ragged) {
          EXPECT_EQ(from, to) << graph.nodes[n].name;
          continue;
        }
        if (from == to || graph.nodes[n].tag.phase != phase) continue;
        const ReshardPlan& plan = planner.plan(type.shape, type.dtype, from, to);
        if (plan.bytes == 0) continue;
        list.push_back(cat(graph.nodes[v.node].name, " -> ", graph.nodes[n].name, ": ",
                           to_string(mesh, plan), " ", plan.bytes));
      }
    }
    return list;
  }
};

Sharded shard(const ModelConfig& model, ParallelOptions o, int64_t batch, int64_t sequence,
              GraphPurpose purpose = GraphPurpose::kTrain) {
  Sharded s;
  GraphOptions g;
  g.purpose = purpose;
  g.batch = batch;
  g.sequence = sequence;
  g.separate_master = o.zero > 0;
  g.balance_alpha = 1e-4;
  s.graph = build_graph(model, g);
  s.mesh = build_mesh(o);
  s.result = propagate(s.graph, s.mesh, {}, strategy_rows(o, s.graph));
  return s;
}

ParallelOptions parallel(int data, int context, int tensor, int expert) {
  ParallelOptions o;
  o.data = data;
  o.context = context;
  o.tensor = tensor;
  o.expert = expert;
  return o;
}

TEST(Strategies, OneRankMovesNothing) {
  const Sharded s = shard(tiny_model(), parallel(1, 1, 1, 1), 2, 16);
  EXPECT_EQ(s.result.reshard_seconds, 0);
}

TEST(Strategies, DataParallelOnlyReducesGradients) {
  ParallelOptions o = parallel(2, 1, 1, 1);
  o.zero = 0;
  const Sharded s = shard(tiny_model(), o, 2, 16);
  EXPECT_EQ(s.edges(Phase::kForward), std::vector<std::string>{});
  EXPECT_EQ(s.edges(Phase::kBackward), std::vector<std::string>{});
  EXPECT_EQ(s.out("layers.1.moe.dispatch"), "[-, dp, -]");
  EXPECT_EQ(s.out("grad:model.norm.weight"), "[-] +{dp}");
  for (const std::string& edge : s.edges(Phase::kUpdate)) {
    EXPECT_NE(edge.find("AllReduce(dp)"), std::string::npos) << edge;
  }
}

TEST(Strategies, ZeroScattersGradientsAndGathersParameters) {
  const Sharded s = shard(tiny_model(), parallel(2, 1, 1, 1), 2, 16);
  EXPECT_EQ(s.out("m:lm_head.weight"), "[dp, -]");
  EXPECT_EQ(s.out("lm_head.weight"), "[-, -]");
  EXPECT_EQ(s.edges(Phase::kForward), std::vector<std::string>{});
  EXPECT_EQ(s.in("settle:lm_head.weight", 0), "[dp, -]");
  EXPECT_EQ(s.out("m:model.norm.weight"), "[-]") << "vectors are too small to be scattered";
  size_t gathers = 0, scatters = 0;
  for (const std::string& edge : s.edges(Phase::kUpdate)) {
    if (edge.find("norm") != std::string::npos || edge.find("load") != std::string::npos) continue;
    gathers += edge.find(": AllGather(0,dp)") != std::string::npos;
    scatters += edge.find(": ReduceScatter(0,dp)") != std::string::npos;
  }
  EXPECT_EQ(gathers, scatters);
  EXPECT_GT(gathers, 20u);
}

/// Axes of copies are stacked fast ones major: on many nodes no exchange follows the scatters.
TEST(Strategies, ZeroNeedsNoExchangeBehindItsScatters) {
  ParallelOptions o = parallel(8, 1, 2, 4);
  o.sequence_parallel = o.tp_extend_ep = true;
  const Sharded s = shard(tiny_model(), o, 8, 16);
  EXPECT_EQ(s.out("m:model.layers.1.self_attn.o_proj.weight"), "[(dp1 dp0), tp]");
  EXPECT_EQ(s.out("m:model.layers.1.self_attn.q_a_proj.weight"), "[(tp dp1 dp0), -]");
  for (const std::string& edge : s.edges(Phase::kUpdate)) {
    if (edge.find("norm") != std::string::npos) continue;
    EXPECT_EQ(edge.find("Direct"), std::string::npos) << edge;
  }
}

TEST(Strategies, TensorAndSequenceParallel) {
  ParallelOptions o = parallel(2, 1, 2, 1);
  o.sequence_parallel = true;
  const Sharded s = shard(tiny_model(), o, 2, 16);
  EXPECT_EQ(s.out("layers.0.attn.residual"), "[dp, tp, -]");
  EXPECT_EQ(s.out("layers.0.attn.q_b"), "[dp, -, tp]");
  EXPECT_EQ(s.out("layers.0.attn.core"), "[dp, -, tp, -]");
  EXPECT_EQ(s.out("layers.0.attn.o"), "[dp, -, -] +{tp}");
  EXPECT_EQ(s.out("layers.0.mlp.act"), "[dp, -, tp]");
  EXPECT_EQ(s.out("embed"), "[dp, -, -] +{tp}");
  EXPECT_EQ(s.out("head"), "[] +{dp}");
  EXPECT_EQ(s.out("grad:model.layers.0.input_layernorm.weight"), "[-] +{dp tp}");
  EXPECT_EQ(s.out("grad:model.layers.0.self_attn.q_b_proj.weight"), "[tp, -] +{dp}");
}

TEST(Strategies, TensorParallelWithoutSequenceParallel) {
  const Sharded s = shard(tiny_model(), parallel(1, 1, 2, 1), 2, 16);
  EXPECT_EQ(s.out("layers.0.attn.residual"), "[-, -, -]");
  EXPECT_EQ(s.out("layers.0.attn.norm"), "[-, -, -]");
  std::map<std::string, int> kinds;
  for (const std::string& edge : s.edges(Phase::kForward)) {
    EXPECT_NE(edge.find("AllReduce(tp)"), std::string::npos) << edge;
  }
}

TEST(Strategies, ExpertParallelKeepsTokensAndSpreadsExperts) {
  const Sharded s = shard(tiny_model(), parallel(4, 1, 1, 2), 4, 16);
  EXPECT_EQ(s.out("layers.1.moe.dispatch"), "[dp1, dp0, -]");
  EXPECT_EQ(s.out("layers.1.moe.combine"), "[dp, -, -]");
  EXPECT_EQ(s.out("grad:model.layers.1.mlp.experts.gate_proj.weight"), "[dp1, -, -] +{dp0}");
  EXPECT_EQ(s.out("grad:model.layers.1.mlp.gate.weight"), "[-, -] +{dp}");
  EXPECT_EQ(s.edges(Phase::kForward), std::vector<std::string>{});
}

/// With tp_extend_ep and whole shared experts no tensor-parallel collective remains in the
/// mixture-of-experts part.
TEST(Strategies, TpExtendEpRemovesTheGathersAroundExperts) {
  ParallelOptions o = parallel(2, 1, 2, 2);
  o.sequence_parallel = true;
  auto moe_collectives = [](const Sharded& s, Phase phase) {
    int count = 0;
    for (const std::string& edge : s.edges(phase)) {
      // The balance loss needs its few statistics of the whole sequence.
      const bool balance = edge.find(".balance") != std::string::npos;
      count += !balance && edge.find(".moe.") != std::string::npos;
    }
    return count;
  };
  const Sharded before = shard(tiny_model(), o, 2, 16);
  EXPECT_EQ(before.out("layers.1.moe.dispatch"), "[dp, -, -]");
  EXPECT_EQ(before.out("layers.1.moe.experts.act"), "[dp, -, tp]");
  EXPECT_EQ(before.out("layers.1.moe.experts.down"), "[dp, -, -] +{tp}");
  EXPECT_EQ(before.out("layers.1.moe.combine"), "[dp, -, -] +{tp}");
  EXPECT_GT(moe_collectives(before, Phase::kForward), 0);
  o.tp_extend_ep = true;
  const Sharded after = shard(tiny_model(), o, 2, 16);
  EXPECT_EQ(after.out("layers.1.moe.dispatch"), "[(dp tp), -, -]");
  EXPECT_EQ(after.out("layers.1.moe.experts.down"), "[(dp tp), -, -]");
  EXPECT_EQ(after.out("layers.1.moe.combine"), "[dp, tp, -]");
  EXPECT_EQ(after.out("grad:model.layers.1.mlp.experts.gate_proj.weight"), "[(dp tp), -, -]");
  EXPECT_EQ(after.out("grad:model.layers.1.mlp.gate.weight"), "[-, -] +{dp tp}");
  EXPECT_EQ(moe_collectives(after, Phase::kForward), 0);
  EXPECT_EQ(moe_collectives(after, Phase::kBackward), 0);
}

TEST(Strategies, ContextParallelGathersKeysOnly) {
  const Sharded s = shard(tiny_model(), parallel(1, 2, 1, 2), 2, 16);
  EXPECT_EQ(s.out("layers.0.attn.core"), "[-, cp, -, -]");
  for (const std::string& edge : s.edges(Phase::kForward)) {
    if (edge.find("AllReduce(cp)") != std::string::npos) continue;  // losses, statistics
    EXPECT_NE(edge.find(".attn.core: AllGather(1,cp)"), std::string::npos) << edge;
  }
  for (const std::string& edge : s.edges(Phase::kBackward)) {
    if (edge.find(".balance.grad: AllReduce(cp)") != std::string::npos) continue;
    const bool keys = edge.find("ReduceScatter(1,cp)") != std::string::npos ||
                      edge.find("AllGather(1,cp)") != std::string::npos;
    EXPECT_TRUE(keys) << edge;
  }
}

TEST(Strategies, UserRowsWin) {
  ParallelOptions o = parallel(1, 1, 2, 1);
  o.user_rows = {user_factors("layers.*.attn.q_b", {{'n', {}}, {'k', {"tp"}}}, "run.yaml:31:5"),
                 user_parameter("self.model.layers.0.mlp.gate_proj.weight", {{"-"}, {"tp"}},
                                "run.yaml:32:5")};
  const Sharded s = shard(tiny_model(), o, 2, 16);
  EXPECT_EQ(s.in("layers.0.attn.q_b", 0), "[-, -, tp]");
  EXPECT_EQ(s.out("layers.0.attn.q_b"), "[-, -, -] +{tp}");
  EXPECT_EQ(s.out("model.layers.0.mlp.gate_proj.weight"), "[-, tp]");
  EXPECT_EQ(s.out("m:model.layers.0.mlp.gate_proj.weight"), "[-, tp]");
  EXPECT_EQ(s.out("model.layers.1.self_attn.q_b_proj.weight"), "[tp, -]");
}

TEST(Strategies, SizesThatDoNotDivideAreRefusedByName) {
  try {
    shard(tiny_model(), parallel(1, 1, 3, 1), 2, 18);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("strategy tp"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("attn.core"), std::string::npos) << error.what();
  }
}

TEST(Strategies, EveryMixIsConsistent) {
  for (const auto& [data, context, tensor, expert] :
       {std::array{2, 2, 1, 4}, {2, 2, 2, 2}, {4, 1, 2, 4}, {1, 2, 2, 1}, {2, 1, 4, 2}}) {
    for (int mode = 0; mode < 12; ++mode) {
      ParallelOptions o = parallel(data, context, tensor, expert);
      o.sequence_parallel = mode % 2 == 1;
      o.tp_extend_ep = mode / 2 % 2 == 1 && expert * tensor <= 8;
      o.zero = std::array{0, 1, 3}[mode / 4];
      const Sharded s = shard(tiny_model(), o, 4, 16);
      s.edges(Phase::kForward);
      for (size_t n = 0; n < s.graph.nodes.size(); ++n) {
        const Node& node = s.graph.nodes[n];
        for (size_t r = 0; r < node.outputs.size(); ++r) {
          if (node.outputs[r].ragged) continue;
          EXPECT_NO_THROW(check_layout(s.mesh, s.result.nodes[n].layouts.results[r],
                                       node.outputs[r].shape, node.name));
        }
      }
    }
  }
}

TEST(Strategies, TheLargestModelIsPlannedInSeconds) {
  ParallelOptions o = parallel(64, 1, 8, 32);
  o.sequence_parallel = true;
  GraphOptions g;
  g.batch = 64;
  g.sequence = 4096;
  g.compute = DType::kBF16;
  g.separate_master = true;
  g.balance_alpha = 1e-4;
  const Graph graph = build_graph(deepseek_v3(), g);
  const Mesh mesh = build_mesh(o);
  const auto rows = strategy_rows(o, graph);
  const auto start = std::chrono::steady_clock::now();
  const ShardingResult result = propagate(graph, mesh, {}, rows);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  EXPECT_EQ(result.nodes.size(), graph.nodes.size());
  EXPECT_LT(seconds, 20);  // 1.5 s on an idle core; the limit leaves room for sanitizers
  std::printf("%zu nodes, %zu rows, %.0f ms\n", graph.nodes.size(), rows.size(), seconds * 1e3);
}

}  // namespace
}  // namespace moetrain
