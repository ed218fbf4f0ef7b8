// Export and import.
#include "train/exchange.h"

#include <filesystem>
#include <map>

#include "base/error.h"
#include "checkpoint/file.h"
#include "checkpoint/hf.h"
#include "checkpoint/json.h"
#include "checkpoint/store.h"
#include "config/schema.h"
#include "train/weights.h"

namespace moetrain {

namespace {

namespace fs = std::filesystem;

/// Lines of one JSON object.
class Object {
 public:
  void number(const char* key, int64_t value) { put(key, std::to_string(value)); }
  void real(const char* key, double value) { put(key, json_number(value)); }
  void text(const char* key, const std::string& value) { put(key, json_quote(value)); }
  void truth(const char* key, bool value) { put(key, value ? "true" : "false"); }
  void put(const char* key, const std::string& json) {
    lines_ += cat(lines_.empty() ? "" : ",\n", indent_, "\"", key, "\": ", json);
  }
  std::string finish(const std::string& closing = "") {
    return cat("{\n", lines_, "\n", closing, "}");
  }
  explicit Object(std::string indent = "  ") : indent_(std::move(indent)) {}

 private:
  std::string indent_, lines_;
};

std::string rope_scaling_json(const RopeScaling& r) {
  Object o("    ");
  o.text("type", r.type);
  o.real("factor", r.factor);
  o.number("original_max_position_embeddings", r.original_max_position_embeddings);
  o.real("beta_fast", r.beta_fast);
  o.real("beta_slow", r.beta_slow);
  if (r.mscale) o.real("mscale", *r.mscale);
  if (r.mscale_all_dim) o.real("mscale_all_dim", *r.mscale_all_dim);
  return o.finish("  ");
}

}  // namespace

std::string hf_config_json(const ModelConfig& m, DType dtype) {
  Object o;
  o.put("architectures", "[\"DeepseekV3ForCausalLM\"]");
  o.text("model_type", "deepseek_v3");
  o.truth("attention_bias", m.attention_bias);
  o.real("attention_dropout", m.attention_dropout);
  o.number("ep_size", 1);
  o.number("first_k_dense_replace", m.first_k_dense_replace);
  o.text("hidden_act", m.hidden_act);
  o.number("hidden_size", m.hidden_size);
  o.real("initializer_range", m.initializer_range);
  o.number("intermediate_size", m.intermediate_size);
  o.number("kv_lora_rank", m.kv_lora_rank);
  o.number("max_position_embeddings", m.max_position_embeddings);
  o.number("moe_intermediate_size", m.moe_intermediate_size);
  o.number("moe_layer_freq", m.moe_layer_freq);
  o.number("n_group", m.n_group);
  o.number("n_routed_experts", m.n_routed_experts);
  o.number("n_shared_experts", m.n_shared_experts);
  o.truth("norm_topk_prob", m.norm_topk_prob);
  o.number("num_attention_heads", m.num_attention_heads);
  o.number("num_experts_per_tok", m.num_experts_per_tok);
  o.number("num_hidden_layers", m.num_hidden_layers);
  o.number("num_key_value_heads", m.num_attention_heads);
  o.number("num_nextn_predict_layers", m.num_nextn_predict_layers);
  o.put("q_lora_rank", m.q_lora_rank ? std::to_string(*m.q_lora_rank) : "null");
  o.number("qk_nope_head_dim", m.qk_nope_head_dim);
  o.number("qk_rope_head_dim", m.qk_rope_head_dim);
  o.real("rms_norm_eps", m.rms_norm_eps);
  o.truth("rope_interleave", m.rope_interleave);
  o.put("rope_scaling", m.rope_scaling ? rope_scaling_json(*m.rope_scaling) : "null");
  o.real("rope_theta", m.rope_theta);
  o.real("routed_scaling_factor", m.routed_scaling_factor);
  o.text("scoring_func", m.scoring_func);
  o.truth("tie_word_embeddings", m.tie_word_embeddings);
  o.number("topk_group", m.topk_group);
  o.text("topk_method", m.topk_method);
  o.text("torch_dtype", dtype == DType::kF32 ? "float32" : "bfloat16");
  o.truth("use_cache", true);
  o.number("v_head_dim", m.v_head_dim);
  o.number("vocab_size", m.vocab_size);
  return o.finish() + "\n";
}

void export_checkpoint(const std::string& folder, const std::string& to, DType dtype) {
  const WeightSource source = find_weights(folder, "", {});
  const ModelConfig& model = source.config.model;
  std::map<std::string, std::string> files{{"config.json", hf_config_json(model, dtype)}};
  if (source.tokenizer != "bytes" && fs::exists(source.tokenizer)) {
    files["tokenizer.json"] = read_file(source.tokenizer);
  }
  export_hf(CheckpointReader(source.checkpoint), published_table(model, dtype), files, to);
}

std::string import_checkpoint(const std::string& from, const std::string& run,
                              const Config& config) {
  const HfFolder folder(from);
  const auto table = published_table(config.model, DType::kBF16);
  std::vector<StateSpec> states;
  for (const Parameter& p : parameters(config.model)) {
    states.push_back({p.name, DType::kF32, p.shape});
  }
  const fs::path tokenizer = fs::absolute(fs::path(from) / "tokenizer.json");
  const bool has_tokenizer = fs::exists(tokenizer);
  const fs::path root = fs::path(run) / "checkpoints", target = root / step_folder(0);
  if (fs::exists(target))
    throw UserError(cat(target.string(), " exists; import into a new folder"));
  fs::create_directories(root);
  import_hf(folder, table, states, target.string(),
            {{"config", show_config(config)},
             {"step", "0"},
             {"consumed_samples", "0"},
             {"updates", "0"},
             {"skipped_steps", "0"},
             {"skipped_in_a_row", "0"},
             {"tokenizer", has_tokenizer ? tokenizer.string() : "bytes"}},
            {"*rotary_emb.inv_freq"});
  if (has_tokenizer) {
    write_file_atomically((fs::path(run) / "tokenizer.json").string(),
                          read_file(tokenizer.string()));
  }
  write_file_atomically((root / "latest").string(), step_folder(0));
  return target.string();
}

}  // namespace moetrain
