// Rules of the model and of the recipe alone, whatever the ranks.
#include "config/rules.h"

namespace moetrain {

namespace {

void check_groups(Rules& r) {
  const ModelConfig& m = r.config.model;
  const int64_t experts = m.n_routed_experts, groups = m.n_group, kept = m.topk_group,
                k = m.num_experts_per_tok;
  if (k > experts)
    r.refuse("model.num_experts_per_tok", "`model.num_experts_per_tok`: ", k,
             " experts per token cannot be chosen from n_routed_experts = ", experts, "; at most ",
             experts);
  if (kept > groups)
    r.refuse("model.topk_group", "`model.topk_group`: ", kept,
             " groups cannot be kept of n_group = ", groups, "; at most ", groups);
  if (!r.divides("model.n_group", "n_routed_experts", experts, "n_group", groups)) return;
  const int64_t size = experts / groups;
  if (groups > 1 && size < 2)
    r.refuse("model.n_group", "`model.n_group`: a group of n_routed_experts / n_group = ", experts,
             " / ", groups, " = ", size,
             " expert has no two best scores; a group needs at least 2 experts: n_group at most ",
             experts / 2, ", or 1 for no groups");
  if (kept <= groups && k <= experts && kept * size < k)
    r.refuse(
        "model.topk_group",
        "`model.topk_group`: the kept groups hold topk_group x n_routed_experts / n_group = ", kept,
        " x ", size, " = ", kept * size, " experts, fewer than num_experts_per_tok = ", k,
        "; keep at least ", (k + size - 1) / size, " groups");
}

void check_change_points(Rules& r, const std::string& path,
                         const std::vector<ChangePoint>& points) {
  for (size_t i = 0; i < points.size(); ++i) {
    const ChangePoint& p = points[i];
    const std::string at = cat(path, ".", i);
    if (p.after_steps.has_value() == p.after_tokens.has_value()) {
      r.refuse(at, "`", at, "`: give exactly one of after_steps and after_tokens");
      continue;
    }
    if (i == 0) continue;
    const ChangePoint& before = points[i - 1];
    if (before.after_steps.has_value() != p.after_steps.has_value())
      r.refuse(at, "`", at, "`: all entries of a list count in the same unit, steps or tokens");
    else if (p.after_steps ? *p.after_steps <= *before.after_steps
                           : *p.after_tokens <= before.after_tokens.value_or(0))
      r.refuse(at, "`", at, "`: entries must come in rising order");
  }
}

void check_rate(Rules& r) {
  const OptimizerConfig& o = r.config.optimizer;
  const RateSchedule& s = o.schedule;
  const std::string path = "optimizer.schedule.";
  if (s.min_learning_rate > o.learning_rate)
    r.refuse(path + "min_learning_rate",
             "`optimizer.schedule.min_learning_rate`: ", s.min_learning_rate,
             " is above optimizer.learning_rate = ", o.learning_rate);
  if ((s.kind == ScheduleKind::kStages) != !s.stages.empty())
    r.refuse(path + "kind", s.stages.empty()
                                ? "`optimizer.schedule.kind: stages` needs the list `stages`"
                                : "`optimizer.schedule.stages` is only used with `kind: stages`");
  const bool curve = s.kind == ScheduleKind::kLinear || s.kind == ScheduleKind::kCosine;
  if (!s.decay_steps.is_auto() &&
      (s.kind == ScheduleKind::kStages || s.kind == ScheduleKind::kConstant))
    r.refuse(path + "decay_steps",
             "`optimizer.schedule.decay_steps` is only used with kind linear, cosine or wsd");
  if (s.decay_steps.is_auto() && s.kind == ScheduleKind::kWsd)
    r.refuse(
        path + "kind",
        "`optimizer.schedule.kind: wsd` needs decay_steps, the length of the decay at the end");
  if (curve && !s.decay_steps.is_auto() && *s.decay_steps < s.warmup_steps)
    r.refuse(path + "decay_steps", "`optimizer.schedule.decay_steps`: ", *s.decay_steps,
             " ends before warm-up, warmup_steps = ", s.warmup_steps);
  for (size_t i = 0; i < s.stages.size(); ++i) {
    const RateStage& stage = s.stages[i];
    const std::string at = cat(path, "stages.", i);
    const bool last = i + 1 == s.stages.size();
    if (stage.steps && stage.tokens)
      r.refuse(at, "`", at, "`: give one of steps and tokens, not both");
    if (!stage.steps && !stage.tokens && !last)
      r.refuse(at, "`", at,
               "`: only the last stage may leave its length out; give steps or tokens");
  }
}

void check_batch_ramp(Rules& r) {
  const std::vector<BatchRampStage>& ramp = r.config.train.batch_ramp;
  for (size_t i = 1; i < ramp.size(); ++i) {
    const std::string at = cat("train.batch_ramp.", i, ".until_tokens");
    if (ramp[i].until_tokens <= ramp[i - 1].until_tokens)
      r.refuse(at, "`", at, "`: entries must come in rising order, but ", ramp[i].until_tokens,
               " follows ", ramp[i - 1].until_tokens);
  }
}

}  // namespace

void check_model(Rules& r) {
  const ModelConfig& m = r.config.model;
  if (*m.num_key_value_heads != m.num_attention_heads)
    r.refuse("model.num_key_value_heads", "`model.num_key_value_heads`: ", *m.num_key_value_heads,
             " must equal num_attention_heads = ", m.num_attention_heads,
             ": latent attention gives every head its own keys and values");
  if (m.qk_rope_head_dim % 2 != 0)
    r.refuse("model.qk_rope_head_dim", "`model.qk_rope_head_dim`: ", m.qk_rope_head_dim,
             " must be even: rotary positions turn pairs; nearest: ",
             nearest_multiples(m.qk_rope_head_dim, 2));
  if (m.first_k_dense_replace > m.num_hidden_layers)
    r.refuse("model.first_k_dense_replace",
             "`model.first_k_dense_replace`: ", m.first_k_dense_replace,
             " dense layers exceed num_hidden_layers = ", m.num_hidden_layers);
  check_groups(r);
  const int64_t sequence = r.config.data.sequence_length;
  if (sequence > m.max_position_embeddings)
    r.refuse("data.sequence_length", "`data.sequence_length`: ", sequence,
             " exceeds model.max_position_embeddings = ", m.max_position_embeddings);
  if (m.num_nextn_predict_layers > 0 && sequence <= m.num_nextn_predict_layers)
    r.refuse("data.sequence_length", "`data.sequence_length`: ", sequence,
             " leaves no target for num_nextn_predict_layers = ", m.num_nextn_predict_layers,
             "; at least ", m.num_nextn_predict_layers + 1);
}

void check_recipe(Rules& r) {
  const Config& c = r.config;
  if (c.train.steps && c.train.tokens)
    r.refuse("train.tokens", "`train.tokens`: give train.steps or train.tokens, not both");
  double shares = 0;
  for (const double share : c.data.split) shares += share;
  if (c.data.split.empty() || c.data.split.size() > 3 || shares <= 0)
    r.refuse("data.split",
             "`data.split`: one to three shares (train, validation, test) with a positive sum, "
             "like 99,1,0");
  check_rate(r);
  check_batch_ramp(r);
  check_change_points(r, "router.bias_update_schedule", c.router.bias_update_schedule);
  check_change_points(r, "train.mtp_lambda_schedule", c.train.mtp_lambda_schedule);
}

}  // namespace moetrain
