// Recomputation: less memory, the same bits, no token routed twice.
#include <gtest/gtest.h>

#include "compile/recompute.h"
#include "layout_run.h"
#include "model/deepseek.h"
#include "ops/route.h"

namespace moetrain {
namespace {

class RecomputeModes : public testing::TestWithParam<const char*> {};

TEST_P(RecomputeModes, GiveTheSameBitsUnderLayouts) {
  const std::string mode = std::string("compute.recompute=") + GetParam();
  const std::vector<std::vector<std::string>> layouts = {
      {}, {"parallel.tensor=2", "parallel.expert=2"}, {"parallel.pipeline=2"}};
  const int ranks[] = {1, 4, 2};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const LayoutRun kept = run_layout(ranks[i], 3, layouts[i]);
    std::vector<std::string> settings = layouts[i];
    settings.push_back(mode);
    const LayoutRun again = run_layout(ranks[i], 3, settings);
    for (size_t s = 0; s < kept.steps.size(); ++s) {
      EXPECT_EQ(kept.steps[s].loss, again.steps[s].loss);
      EXPECT_EQ(kept.steps[s].balance_loss, again.steps[s].balance_loss);
      EXPECT_EQ(kept.steps[s].grad_norm, again.steps[s].grad_norm);
      EXPECT_EQ(kept.steps[s].loads, again.steps[s].loads);
    }
    for (const auto& [name, values] : kept.weights) EXPECT_EQ(values, again.weights.at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RecomputeModes, testing::Values("selective", "full"),
                         [](const auto& info) { return std::string(info.param); });

ModelConfig small_model() {
  ModelConfig m;
  m.vocab_size = 64;
  m.hidden_size = 32;
  m.intermediate_size = 64;
  m.moe_intermediate_size = 16;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 2;
  m.n_routed_experts = 4;
  m.num_experts_per_tok = 2;
  m.first_k_dense_replace = 1;
  m.q_lora_rank = 16;
  m.kv_lora_rank = 16;
  m.qk_nope_head_dim = 8;
  m.qk_rope_head_dim = 4;
  m.v_head_dim = 8;
  return m;
}

TEST(Recompute, NeedsLessMemoryAndRoutesOnce) {
  GraphOptions options;
  options.batch = 2;
  options.sequence = 64;
  const Graph graph = build_graph(small_model(), options);
  int64_t arena = 0;
  for (const RecomputeMode mode :
       {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    CompileRequest request;
    request.recompute = mode;
    const Compiled compiled = compile(graph, request);
    int routed = 0;
    for (const Node& node : compiled.local.graph.nodes) routed += node.op == &ops::kRoute;
    EXPECT_EQ(routed, 2);
    if (arena > 0) {
      EXPECT_LT(compiled.plan.arena_bytes, arena);
    }
    arena = compiled.plan.arena_bytes;
  }
}

}  // namespace
}  // namespace moetrain
