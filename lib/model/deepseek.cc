// The decoder: embedding, blocks, head, multi-token prediction and the loss.
#include "model/deepseek.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "model/builder.h"
#include "model/rotary.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pad.h"
#include "ops/route.h"
#include "ops/swiglu.h"
#include "ops/update.h"
#include "ops/vocab_loss.h"

namespace moetrain {

Builder::Builder(Graph& graph, const ModelConfig& model, const GraphOptions& given)
    : g(graph), m(model), options(given), table(parameters(model)), rope_(rope_table(model)),
      softmax_scale_(softmax_scale(model)) {
  const Shape bs{options.batch, options.sequence};
  const bool wants_loss = options.purpose != GraphPurpose::kGenerate;
  const int64_t depths = wants_loss ? m.num_nextn_predict_layers : 0;
  for (int64_t k = 0; k <= depths; ++k) {
    tokens_.push_back(ops::input(g, cat("tokens.", k), DType::kI32, bs));
    if (!wants_loss) continue;
    labels_.push_back(ops::input(g, cat("labels.", k), DType::kI32, bs));
    valid_.push_back(ops::input(g, cat("valid.", k), DType::kF32, bs));
    scales_.push_back(ops::input(g, cat("scale.", k), DType::kF32, {}));
  }
  pos_ = ops::input(g, "pos", DType::kI32, bs);
  doc_start_ = ops::input(g, "doc_start", DType::kI32, bs);
  if (options.purpose == GraphPurpose::kTrain && options.balance_alpha > 0) {
    scale_balance_ = ops::input(g, "scale.balance", DType::kF32, {});
  }
  for (const Parameter& p : table) {
    g.tag.layer = p.layer;
    g.tag.stage = home_chunk(p);
    params_[p.name] = ops::state(g, p.name, p.fp32 ? DType::kF32 : options.compute, p.shape);
  }
  g.tag.layer = -1;
  g.tag.stage = 0;
}

int Builder::home_chunk(const Parameter& p) const {
  if (p.layer >= 0) return options.chunk_of(p.layer);
  return p.name == "model.embed_tokens.weight" ? 0 : options.stages.chunks() - 1;
}

Value Builder::param(const std::string& name) {
  const Value own = params_.at(name);
  const int here = stage();
  if (options.stages.stage_of(g.node(own).tag.stage) == here) return own;
  const std::string copy = copy_name(name, here);
  for (const ParameterCopy& c : copies) {
    if (c.name == copy) return c.value;
  }
  const Type type = g.type(own);
  const std::string scope = std::exchange(g.scope, "");
  copies.push_back({name, copy, g.tag.stage, ops::state(g, copy, type.dtype, type.shape)});
  g.scope = scope;
  return copies.back().value;
}

Value Builder::linear(Value x, const std::string& weight, const std::string& name) {
  return ops::matmul(g, x, param(weight), name);
}

Value Builder::wide_linear(Value x, const std::string& weight, const std::string& name) {
  return g.add(ops::kMatmul, {x, param(weight)}, {{"dtype", std::string("f32")}}, name);
}

Value Builder::norm(Value x, const std::string& weight, double eps, DType dtype,
                    const std::string& name) {
  return ops::rms_norm(g, x, param(weight), eps, dtype, name);
}

Value Builder::feed_forward(Value x_bsd, const std::string& prefix, const std::string& name) {
  const Value gate = linear(x_bsd, prefix + "gate_proj.weight", name + ".gate");
  const Value up = linear(x_bsd, prefix + "up_proj.weight", name + ".up");
  const Value y = ops::swiglu(g, gate, up, name + ".act");
  return wide_linear(y, prefix + "down_proj.weight", name + ".down");
}

Value Builder::attention(Value x_bsd, int layer) {
  const std::string p = cat("model.layers.", layer, ".self_attn.");
  const int64_t b = options.batch, s = options.sequence, heads = m.num_attention_heads;
  const double kInnerEps = 1e-6;

  Value q;
  if (m.q_lora_rank) {
    const Value latent = wide_linear(x_bsd, p + "q_a_proj.weight", "attn.q_a");
    q = linear(norm(latent, p + "q_a_layernorm.weight", kInnerEps, "attn.q_a_norm"),
               p + "q_b_proj.weight", "attn.q_b");
  } else {
    q = linear(x_bsd, p + "q_proj.weight", "attn.q");
  }
  q = ops::reshape(g, q, {b, s, heads, m.qk_head_dim()});
  q = ops::rope(g, q, pos(), rope_, "attn.q_rope");

  const Value joint = wide_linear(x_bsd, p + "kv_a_proj_with_mqa.weight", "attn.kv_a");
  const auto parts = ops::split(g, joint, {m.kv_lora_rank, m.qk_rope_head_dim}, "attn.kv_split");
  const Value latent = norm(parts[0], p + "kv_a_layernorm.weight", kInnerEps, "attn.kv_a_norm");
  Value kv = linear(latent, p + "kv_b_proj.weight", "attn.kv_b");
  kv = ops::reshape(g, kv, {b, s, heads, m.qk_nope_head_dim + m.v_head_dim});
  const Value k_rope =
      ops::cast(g, ops::rope(g, parts[1], pos(), rope_, "attn.k_rope"), options.compute);

  const int64_t missing = options.pad_value_heads ? m.qk_head_dim() - m.v_head_dim : 0;
  if (missing > 0) kv = ops::pad(g, kv, missing, "attn.pad");  // values are its last entries
  Value o = ops::attention(g, q, kv, k_rope, pos(), pos(), doc_start(), m.qk_nope_head_dim,
                           softmax_scale_, "attn.core");
  if (missing > 0) o = ops::crop(g, o, missing, "attn.crop");
  o = ops::reshape(g, o, {b, s, heads * m.v_head_dim});
  return wide_linear(o, p + "o_proj.weight", "attn.o");
}

Value Builder::block(Value x_bsd, int layer, int64_t valid_positions) {
  const std::string p = cat("model.layers.", layer, ".");
  const Value attended = attention(
      norm(x_bsd, p + "input_layernorm.weight", m.rms_norm_eps, "attn.norm"), layer);
  const Value a = ops::add(g, x_bsd, attended, "attn.residual");
  const bool dense = layer < m.num_hidden_layers && m.is_dense(layer);
  const Value n = norm(a, p + "post_attention_layernorm.weight", m.rms_norm_eps,
                       dense ? options.compute : DType::kF32, "mlp.norm");
  const Value y =
      dense ? feed_forward(n, p + "mlp.", "mlp") : experts(n, layer, valid_positions);
  return ops::add(g, a, y, "mlp.residual");
}

namespace {

/// Forward pass and loss; the outputs of every purpose.
class Decoder {
 public:
  Decoder(Graph& g, const ModelConfig& m, const GraphOptions& options)
      : g_(g), m_(m), options_(options), b_(g, m, options) {}

  void build() {
    // The residual stream stays in float32 whatever the compute dtype: it adds up over all layers.
    Value x = ops::embedding(g_, b_.param("model.embed_tokens.weight"), b_.tokens(0), DType::kF32,
                             "embed");
    for (int i = 0; i < m_.num_hidden_layers; ++i) {
      g_.tag.stage = options_.chunk_of(i);
      Scope scope(g_, cat("layers.", i, "."), i);
      x = b_.block(x, i, options_.sequence);
      dump(cat("hidden.", i), x);
    }
    g_.tag.stage = options_.stages.chunks() - 1;
    x = b_.norm(x, "model.norm.weight", m_.rms_norm_eps, "final_norm");
    dump("hidden.final", x);
    if (options_.purpose == GraphPurpose::kGenerate) {
      g_.mark_output("logits", logits(x, "head.logits"));
      return;
    }
    head(x, 0);
    for (int k = 1; k <= m_.num_nextn_predict_layers; ++k) x = predict_further(x, k);
    finish();
  }

 private:
  Value head_weight() {
    return b_.param(m_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  }
  Value logits(Value x, const std::string& name) {
    return g_.add(ops::kMatmul, {x, head_weight()}, {{"dtype", std::string("f32")}}, name);
  }
  void dump(const std::string& name, Value v) {
    if (options_.dump) g_.mark_output(name, v);
  }
  void head(Value x, int k) {
    const bool gradient = options_.purpose == GraphPurpose::kTrain;
    const auto loss = ops::vocab_loss(g_, x, head_weight(), b_.labels(k), b_.valid(k), b_.scale(k),
                                      gradient, k == 0 ? "head" : cat("head.", k));
    losses_.push_back(loss.loss);
    sums_.push_back(loss.sum);
    if (options_.dump) {
      dump(k == 0 ? "logits" : cat("mtp.", k - 1, ".logits"),
           logits(x, cat("head.logits.", k)));
    }
  }

  /// MTP depth k (arXiv:2412.19437 2.2): one more block on [embedding of the k-th next token; g^(k-1)].
  Value predict_further(Value previous, int k) {
    const int layer = static_cast<int>(m_.num_hidden_layers) + k - 1;
    const std::string p = cat("model.layers.", layer, ".");
    Scope scope(g_, cat("layers.", layer, "."), layer);
    const Value e = ops::embedding(g_, b_.param("model.embed_tokens.weight"), b_.tokens(k),
                                   DType::kF32, "mtp.embed");
    const Value joint = ops::concat(
        g_, {b_.norm(e, p + "enorm.weight", m_.rms_norm_eps, "mtp.enorm"),
             b_.norm(previous, p + "hnorm.weight", m_.rms_norm_eps, "mtp.hnorm")},
        "mtp.concat");
    const Value x = b_.wide_linear(joint, p + "eh_proj.weight", "mtp.eh_proj");
    const Value y = b_.block(x, layer, options_.sequence - k);
    dump(cat("mtp.", k - 1, ".hidden"), y);
    const Value out = b_.norm(y, p + "shared_head.norm.weight", m_.rms_norm_eps, "mtp.norm");
    head(out, k);
    return out;
  }

  void finish() {
    if (options_.purpose == GraphPurpose::kEvaluate) {
      for (size_t k = 0; k < sums_.size(); ++k) g_.mark_output(cat("loss_sum.", k), sums_[k]);
      return;
    }
    std::vector<Value> balances;
    if (options_.balance_alpha > 0 && !b_.routed.empty()) {
      std::map<int, std::vector<Value>> terms;  // per stage
      const Tag tag = g_.tag;
      for (const RoutedLayer& r : b_.routed) {
        const double t = static_cast<double>(r.tokens_per_sequence);
        const double coefficient = options_.balance_alpha *
                                   static_cast<double>(m_.n_routed_experts) /
                                   (static_cast<double>(m_.num_experts_per_tok) * t * t);
        g_.tag.stage = options_.chunk_of(r.layer);
        terms[b_.stage()].push_back(ops::balance_loss(g_, r.plain, r.mean_score, b_.scale_balance(),
                                          coefficient, cat("layers.", r.layer, ".balance")));
      }
      for (const auto& [stage, values] : terms) {
        g_.tag.stage = g_.node(values.back()).tag.stage;
        balances.push_back(
            ops::add_n(g_, values, terms.size() == 1 ? "balance" : cat("balance.", stage)));
        losses_.push_back(balances.back());
      }
      g_.tag = tag;
    }
    const Value loss = losses_.size() == 1 ? losses_[0] : ops::add_n(g_, losses_, "loss");
    build_update(b_, sums_, balances, loss);
  }

  Graph& g_;
  const ModelConfig& m_;
  const GraphOptions& options_;
  Builder b_;
  std::vector<Value> losses_, sums_;
};

}  // namespace

Graph build_graph(const ModelConfig& model, const GraphOptions& options) {
  Graph graph;
  Decoder(graph, model, options).build();
  return graph;
}

}  // namespace moetrain
