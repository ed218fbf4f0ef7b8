// Rows of section `model`; names are those of DeepSeek-V3's config.json.
#include "config/row.h"

namespace moetrain {

Fields describe(RopeScaling& c) {
  return {
      row("type", &c.type, "kind of context extension").one_of({"yarn"}),
      row("factor", &c.factor, "how many times longer than the original context").at_least(1),
      row("original_max_position_embeddings", &c.original_max_position_embeddings,
          "context the model was first trained with")
          .unit("tokens")
          .at_least(1),
      row("beta_fast", &c.beta_fast,
          "turns within the original context above which a frequency is kept")
          .above(0),
      row("beta_slow", &c.beta_slow, "turns below which a frequency is divided by factor").above(0),
      row("mscale", &c.mscale,
          "numerator of the cos/sin amplitude; null or 0: the plain YaRN amplitude")
          .at_least(0),
      row("mscale_all_dim", &c.mscale_all_dim,
          "denominator of that amplitude, and its square scales the softmax; null or 0: neither")
          .at_least(0),
  };
}

Fields describe(ModelConfig& c) {
  constexpr double kLargest = 1 << 30;
  return bounded(
      {
          row("hf_config", &c.hf_config,
              "published config.json that gives every model key not written here; relative to this "
              "file"),
          row("vocab_size", &c.vocab_size, "rows of the embedding and of the output head")
              .unit("tokens")
              .at_least(2)
              .required(),
          row("hidden_size", &c.hidden_size, "width of the residual stream").at_least(1).required(),
          row("intermediate_size", &c.intermediate_size, "width of a dense layer's feed-forward")
              .at_least(1)
              .required(),
          row("moe_intermediate_size", &c.moe_intermediate_size, "width of one expert")
              .at_least(1)
              .required(),
          row("num_hidden_layers", &c.num_hidden_layers,
              "decoder layers, without multi-token prediction")
              .at_least(1)
              .required(),
          row("num_attention_heads", &c.num_attention_heads, "attention heads")
              .at_least(1)
              .required(),
          row("num_key_value_heads", &c.num_key_value_heads,
              "always num_attention_heads: latent attention shares no heads")
              .at_least(1),
          row("n_shared_experts", &c.n_shared_experts,
              "experts every token visits; together one feed-forward")
              .at_least(0),
          row("n_routed_experts", &c.n_routed_experts,
              "experts a token may be routed to, per layer")
              .at_least(1)
              .required(),
          row("routed_scaling_factor", &c.routed_scaling_factor,
              "factor on the routed experts' weights")
              .above(0),
          row("kv_lora_rank", &c.kv_lora_rank, "width of the latent that holds keys and values")
              .at_least(1)
              .required(),
          row("q_lora_rank", &c.q_lora_rank,
              "width of the query latent; null: one full-rank projection")
              .at_least(1),
          row("qk_rope_head_dim", &c.qk_rope_head_dim, "rotated part of a query or key head (even)")
              .at_least(2)
              .required(),
          row("v_head_dim", &c.v_head_dim, "width of a value head").at_least(1).required(),
          row("qk_nope_head_dim", &c.qk_nope_head_dim,
              "part of a query or key head without position")
              .at_least(1)
              .required(),
          row("n_group", &c.n_group, "consecutive groups the experts form; 1: no groups")
              .at_least(1),
          row("topk_group", &c.topk_group, "groups a token may use").at_least(1),
          row("num_experts_per_tok", &c.num_experts_per_tok, "routed experts per token (top-k)")
              .at_least(1)
              .required(),
          row("first_k_dense_replace", &c.first_k_dense_replace,
              "leading layers with a dense feed-forward")
              .at_least(0),
          row("moe_layer_freq", &c.moe_layer_freq,
              "every how many layers experts stand; only 1 exists in this family")
              .at_least(1)
              .at_most(1),
          row("norm_topk_prob", &c.norm_topk_prob,
              "normalise the chosen experts' weights to sum 1"),
          row("scoring_func", &c.scoring_func, "router score; softmax belongs to the older family")
              .one_of({"sigmoid"}),
          row("topk_method", &c.topk_method,
              "how experts are chosen: bias-corrected, without auxiliary loss")
              .one_of({"noaux_tc"}),
          row("hidden_act", &c.hidden_act, "activation of gated feed-forwards").one_of({"silu"}),
          row("max_position_embeddings", &c.max_position_embeddings, "longest sequence")
              .unit("tokens")
              .at_least(1),
          row("initializer_range", &c.initializer_range, "standard deviation of initial weights")
              .at_least(0),
          row("rms_norm_eps", &c.rms_norm_eps, "added to the mean square in norms").above(0),
          row("rope_theta", &c.rope_theta, "base of the rotary frequencies").above(1),
          row("rope_scaling", optional_group(&c.rope_scaling),
              "YaRN context extension; null: none"),
          row("rope_interleave", &c.rope_interleave,
              "rotary pairs are neighbours (2m, 2m+1); false: (m, m + half)"),
          row("attention_bias", &c.attention_bias,
              "bias in attention projections; this family has none")
              .one_of({"false"}),
          row("attention_dropout", &c.attention_dropout,
              "dropout of attention weights; this family has none")
              .at_least(0)
              .at_most(0),
          row("tie_word_embeddings", &c.tie_word_embeddings,
              "one matrix for embedding and output head; this family has two")
              .one_of({"false"}),
          row("num_nextn_predict_layers", &c.num_nextn_predict_layers,
              "multi-token-prediction layers (depth)")
              .at_least(0),
          row("torch_dtype", &c.torch_dtype,
              "dtype of published weights (informational; see compute.precision)")
              .one_of({"bfloat16", "float16", "float32"}),
      },
      kLargest);
}

}  // namespace moetrain
