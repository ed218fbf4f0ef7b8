// Section `model`: the architecture, under the key names of DeepSeek-V3's published config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/value.h"

namespace moetrain {

/// YaRN (arXiv:2309.00071). Absent means plain rotary positions.
struct RopeScaling {
  std::string type = "yarn";
  double factor = 1;
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  /// Absent or zero switches the quotient of the cos/sin amplitude off (see rope in lib/model).
  std::optional<double> mscale;
  /// Absent or zero leaves the softmax scale alone.
  std::optional<double> mscale_all_dim;
};

/// A DeepSeek-V3-style decoder: latent attention, routed and shared experts, multi-token
/// prediction.
struct ModelConfig {
  /// A published config.json that gives every key not written inline; relative to the YAML file.
  std::optional<std::string> hf_config;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;      ///< width of a dense layer's feed-forward
  int64_t moe_intermediate_size = 0;  ///< width of one expert
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  Auto<int64_t> num_key_value_heads;  ///< always num_attention_heads
  int64_t n_shared_experts = 1;
  int64_t n_routed_experts = 0;
  double routed_scaling_factor = 1;
  int64_t kv_lora_rank = 0;
  std::optional<int64_t> q_lora_rank;  ///< absent: one full-rank query projection
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  int64_t num_experts_per_tok = 0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  bool norm_topk_prob = true;
  std::string scoring_func = "sigmoid";
  std::string topk_method = "noaux_tc";
  std::string hidden_act = "silu";
  int64_t max_position_embeddings = 4096;
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool rope_interleave = true;
  bool attention_bias = false;
  double attention_dropout = 0;
  bool tie_word_embeddings = false;
  int64_t num_nextn_predict_layers = 0;
  std::string torch_dtype =
      "bfloat16";  ///< of published weights; what is computed is compute.precision

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  /// Width of all shared experts together (they are one feed-forward).
  int64_t shared_width() const { return n_shared_experts * moe_intermediate_size; }
  bool is_dense(int64_t layer) const { return layer < first_k_dense_replace; }
  /// Decoder layers and multi-token-prediction layers; the latter come last.
  int64_t total_layers() const { return num_hidden_layers + num_nextn_predict_layers; }
  int64_t moe_layers() const {
    return num_hidden_layers - first_k_dense_replace + num_nextn_predict_layers;
  }
};

}  // namespace moetrain
