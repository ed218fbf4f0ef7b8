// A small mixture-of-experts model with every operator of a training step, for the fusion passes.
#pragma once

#include "model/deepseek.h"

namespace moetrain::test {

inline ModelConfig tiny_model(int64_t width = 16) {
  ModelConfig m;
  m.vocab_size = 32;
  m.hidden_size = width;
  m.intermediate_size = 2 * width;
  m.moe_intermediate_size = width / 2;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 2;
  m.n_routed_experts = 4;
  m.num_experts_per_tok = 2;
  m.first_k_dense_replace = 1;
  m.q_lora_rank = width / 2;
  m.kv_lora_rank = width / 2;
  m.qk_nope_head_dim = width / 4;
  m.qk_rope_head_dim = width / 4;
  m.v_head_dim = width / 4;
  m.num_nextn_predict_layers = 1;
  return m;
}

inline Graph training_graph(const ModelConfig& model, DType compute, int64_t sequence = 6) {
  GraphOptions options;
  options.batch = 2;
  options.sequence = sequence;
  options.compute = compute;
  options.separate_master = compute == DType::kBF16;
  options.balance_alpha = 0.01;
  return build_graph(model, options);
}

}  // namespace moetrain::test
