// The small model of these tests, compiled for rank 0 under a layout.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "train/session.h"

namespace moetrain {

struct TinyPlan {
  Config config;
  Graph graph;
  Compiled compiled;
};

/// One dense and one MoE layer, width 64, 4 heads, 8 experts, sequence 32; all ranks on one node.
inline TinyPlan tiny_plan(int ranks, const std::vector<std::string>& settings) {
  const char* const model = R"(
model: {vocab_size: 512, hidden_size: 64, intermediate_size: 128, moe_intermediate_size: 32,
  num_hidden_layers: 2, num_attention_heads: 4, n_shared_experts: 1, n_routed_experts: 8,
  num_experts_per_tok: 2, n_group: 4, topk_group: 2, routed_scaling_factor: 2.5,
  first_k_dense_replace: 1, q_lora_rank: 32, kv_lora_rank: 16, qk_nope_head_dim: 16,
  qk_rope_head_dim: 8, v_head_dim: 16, num_nextn_predict_layers: 0}
data: {sequence_length: 32}
train: {global_batch_size: 8, micro_batch_size: 1, steps: 5}
compute: {precision: fp32, threads: 1}
)";
  TinyPlan plan;
  plan.config = parse_config(model, "tiny.yaml", ".", settings);
  resolve(plan.config, ranks);
  validate(plan.config, ranks);
  plan.graph = build_graph(plan.config.model, graph_options(plan.config, {}));
  LinkModel links;
  links.ranks_per_node = ranks;
  plan.compiled = compile(plan.graph, compile_request(plan.config, plan.graph, 0, ranks, links));
  return plan;
}

}  // namespace moetrain
