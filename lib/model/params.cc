// Names, shapes and initial values of all parameters.
#include "model/params.h"

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"

namespace moetrain {

namespace {

class Table {
 public:
  explicit Table(const ModelConfig& m) : m_(m) {}

  std::vector<Parameter> build() {
    const int64_t h = m_.hidden_size;
    // Looked up, not multiplied with: its rows enter the residual stream unrounded.
    plain("model.embed_tokens.weight", {m_.vocab_size, h}).fp32 = !m_.tie_word_embeddings;
    for (int64_t i = 0; i < m_.total_layers(); ++i) layer(static_cast<int>(i));
    layer_ = -1;
    norm("model.norm.weight", h);
    if (!m_.tie_word_embeddings) matrix("lm_head.weight", {m_.vocab_size, h});
    return std::move(out_);
  }

 private:
  Parameter& plain(const std::string& name, Shape shape) {
    Parameter p;
    p.name = name;
    p.shape = shape;
    p.layer = layer_;
    p.published.push_back({name, shape, {std::vector<int64_t>(shape.size(), 0), shape}});
    out_.push_back(std::move(p));
    return out_.back();
  }
  void matrix(const std::string& name, Shape shape) { plain(name, std::move(shape)); }
  void norm(const std::string& name, int64_t width) {
    Parameter& p = plain(name, {width});
    p.initial = Initial::kOnes;
    p.decayed = false;
    p.fp32 = true;
  }
  void experts(const std::string& prefix, const std::string& suffix, int64_t rows, int64_t cols) {
    Parameter p;
    p.name = prefix + suffix;
    p.shape = {m_.n_routed_experts, rows, cols};
    p.layer = layer_;
    for (int64_t e = 0; e < m_.n_routed_experts; ++e) {
      p.published.push_back({cat(prefix, e, ".", suffix), {rows, cols}, {{e, 0, 0}, {1, rows, cols}}});
    }
    out_.push_back(std::move(p));
  }
  void feed_forward(const std::string& prefix, int64_t width) {
    matrix(prefix + "gate_proj.weight", {width, m_.hidden_size});
    matrix(prefix + "up_proj.weight", {width, m_.hidden_size});
    matrix(prefix + "down_proj.weight", {m_.hidden_size, width});
  }

  void layer(int i) {
    layer_ = i;
    const std::string prefix = cat("model.layers.", i, ".");
    const int64_t h = m_.hidden_size, heads = m_.num_attention_heads;
    if (i >= m_.num_hidden_layers) {
      norm(prefix + "enorm.weight", h);
      norm(prefix + "hnorm.weight", h);
      matrix(prefix + "eh_proj.weight", {h, 2 * h});
      norm(prefix + "shared_head.norm.weight", h);
    }
    norm(prefix + "input_layernorm.weight", h);
    const std::string a = prefix + "self_attn.";
    if (m_.q_lora_rank) {
      matrix(a + "q_a_proj.weight", {*m_.q_lora_rank, h});
      norm(a + "q_a_layernorm.weight", *m_.q_lora_rank);
      matrix(a + "q_b_proj.weight", {heads * m_.qk_head_dim(), *m_.q_lora_rank});
    } else {
      matrix(a + "q_proj.weight", {heads * m_.qk_head_dim(), h});
    }
    matrix(a + "kv_a_proj_with_mqa.weight", {m_.kv_lora_rank + m_.qk_rope_head_dim, h});
    norm(a + "kv_a_layernorm.weight", m_.kv_lora_rank);
    matrix(a + "kv_b_proj.weight",
           {heads * (m_.qk_nope_head_dim + m_.v_head_dim), m_.kv_lora_rank});
    matrix(a + "o_proj.weight", {h, heads * m_.v_head_dim});
    norm(prefix + "post_attention_layernorm.weight", h);
    const std::string mlp = prefix + "mlp.";
    if (i < m_.num_hidden_layers && m_.is_dense(i)) {
      feed_forward(mlp, m_.intermediate_size);
      return;
    }
    plain(mlp + "gate.weight", {m_.n_routed_experts, h}).fp32 = true;
    Parameter& bias = plain(mlp + "gate.e_score_correction_bias", {m_.n_routed_experts});
    bias.initial = Initial::kZeros;
    bias.trained = bias.decayed = false;
    bias.fp32 = true;
    const int64_t width = m_.moe_intermediate_size;
    experts(mlp + "experts.", "gate_proj.weight", width, h);
    experts(mlp + "experts.", "up_proj.weight", width, h);
    experts(mlp + "experts.", "down_proj.weight", h, width);
    if (m_.n_shared_experts > 0) feed_forward(mlp + "shared_experts.", m_.shared_width());
  }

  const ModelConfig& m_;
  std::vector<Parameter> out_;
  int layer_ = -1;
};

}  // namespace

std::vector<Parameter> parameters(const ModelConfig& model) { return Table(model).build(); }

ParameterCounts count_parameters(const ModelConfig& model) {
  ParameterCounts counts;
  for (const Parameter& p : parameters(model)) {
    if (!p.trained) continue;
    const int64_t n = numel(p.shape);
    counts.total += n;
    counts.active += p.shape.size() == 3
                         ? n / model.n_routed_experts * model.num_experts_per_tok
                         : n;
  }
  return counts;
}

namespace {

/// Writes the part of `box` that lies in one published tensor.
void fill_slice(const Parameter& p, const PublishedSlice& t, double std, uint64_t seed,
                const Box& box, float* out) {
  const size_t dims = p.shape.size();
  std::vector<int64_t> begin(dims), end(dims);
  for (size_t d = 0; d < dims; ++d) {
    begin[d] = std::max(box.begin[d], t.slice.begin[d]);
    end[d] = std::min(box.begin[d] + box.extent[d], t.slice.begin[d] + t.slice.extent[d]);
    if (end[d] <= begin[d]) return;
  }
  const CounterRandom random(seed, t.name);
  std::vector<int64_t> at = begin;
  while (true) {
    int64_t element = 0, to = 0;
    for (size_t d = 0; d < dims; ++d) {
      element = element * t.slice.extent[d] + at[d] - t.slice.begin[d];
      to = to * box.extent[d] + at[d] - box.begin[d];
    }
    for (int64_t k = 0; k < end[dims - 1] - begin[dims - 1]; ++k) {
      out[to + k] = static_cast<float>(std * random.normal(element + k));
    }
    size_t d = dims - 1;
    while (d > 0 && ++at[d - 1] == end[d - 1]) {
      at[d - 1] = begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace

void initial_values(const Parameter& p, const ModelConfig& model, uint64_t seed, const Box& box,
                    float* out) {
  const int64_t n = numel(box.extent);
  if (p.initial != Initial::kNormal) {
    std::fill(out, out + n, p.initial == Initial::kOnes ? 1.0f : 0.0f);
    return;
  }
  for (const PublishedSlice& t : p.published) {
    fill_slice(p, t, model.initializer_range, seed, box, out);
  }
}

}  // namespace moetrain
