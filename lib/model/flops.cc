// Counting multiply-adds.
#include "model/flops.h"

namespace moetrain {

namespace {

double layer_macs(const ModelConfig& m, bool dense, double keys) {
  const double h = m.hidden_size, heads = m.num_attention_heads, qk = m.qk_head_dim(),
               v = m.v_head_dim, rk = m.kv_lora_rank;
  const double rq = m.q_lora_rank ? static_cast<double>(*m.q_lora_rank) : 0;
  double macs = rq > 0 ? h * rq + rq * heads * qk : h * heads * qk;
  macs += h * (rk + m.qk_rope_head_dim) + rk * heads * (m.qk_nope_head_dim + v) + heads * v * h;
  macs += heads * (qk + v) * keys;
  if (dense) return macs + 3 * h * m.intermediate_size;
  return macs + h * m.n_routed_experts +
         3 * h * m.moe_intermediate_size * (m.num_experts_per_tok + m.n_shared_experts);
}

}  // namespace

std::vector<double> forward_flops_of_layers(const ModelConfig& m, int64_t sequence_length) {
  const double keys = static_cast<double>(sequence_length + 1) / 2;
  const double h = m.hidden_size, head = h * m.vocab_size;
  std::vector<double> flops;
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    flops.push_back(2 * layer_macs(m, m.is_dense(i), keys));
  }
  const double further = 2 * h * h + layer_macs(m, false, keys) + head;
  flops.push_back(2 * (head + m.num_nextn_predict_layers * further));
  return flops;
}

double forward_flops_per_token(const ModelConfig& m, int64_t sequence_length) {
  double sum = 0;
  for (double flops : forward_flops_of_layers(m, sequence_length)) sum += flops;
  return sum;
}

double training_flops_per_token(const ModelConfig& m, int64_t sequence_length) {
  return 3 * forward_flops_per_token(m, sequence_length);
}

}  // namespace moetrain
