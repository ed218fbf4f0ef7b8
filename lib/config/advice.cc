// Explains unknown keys by looking at the rows of all sections.
#include "config/advice.h"

#include <algorithm>

#include "base/text.h"

namespace moetrain {

namespace {

std::string join_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : cat(path, ".", key);
}

void collect_keys(const Fields& rows, const std::string& path,
                  std::vector<std::pair<std::string, std::string>>& out) {
  for (const Field& field : rows) {
    out.emplace_back(field.name, path);
    const std::string inner = join_path(path, field.name);
    if (const Group* g = std::get_if<Group>(&field.target)) {
      collect_keys(g->fields(), inner, out);
    } else if (const Records* r = std::get_if<Records>(&field.target)) {
      r->resize(1);
      collect_keys(r->at(0), inner + "[]", out);
    }
  }
}

std::string normalised(const std::string& key) {
  std::string plain = key;
  std::replace(plain.begin(), plain.end(), '-', '_');
  for (char& c : plain) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return plain;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The only name of which `word` is a beginning, or which begins `word`; else "".
std::string by_beginning(const std::string& word, const std::vector<std::string>& names) {
  constexpr size_t kShortest = 4;
  std::string found;
  for (const std::string& name : names) {
    const size_t common = std::min(name.size(), word.size());
    if (common < kShortest || name.compare(0, common, word, 0, common) != 0) continue;
    if (!found.empty()) return "";
    found = name;
  }
  return found;
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& all_keys() {
  static const auto keys = [] {
    Config scratch;
    std::vector<std::pair<std::string, std::string>> out;
    collect_keys(describe(scratch), "", out);
    return out;
  }();
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& foreign_names() {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"lr", "optimizer.learning_rate"},
      {"min_lr", "optimizer.schedule.min_learning_rate"},
      {"lr_schedule", "optimizer.schedule"},
      {"grad_clip", "optimizer.clip_norm"},
      {"clip_grad", "optimizer.clip_norm"},
      {"max_grad_norm", "optimizer.clip_norm"},
      {"seq_length", "data.sequence_length"},
      {"seq_len", "data.sequence_length"},
      {"data_path", "data.train"},
      {"tp", "parallel.tensor"},
      {"pp", "parallel.pipeline"},
      {"dp", "parallel.data"},
      {"ep", "parallel.expert"},
      {"cp", "parallel.context"},
      {"tensor_parallel", "parallel.tensor"},
      {"pipeline_parallel", "parallel.pipeline"},
      {"data_parallel", "parallel.data"},
      {"expert_parallel", "parallel.expert"},
      {"context_parallel", "parallel.context"},
      {"pipeline_stage", "parallel.pipeline"},
      {"model_parallel", "parallel.tensor"},
      {"use_seq_parallel", "parallel.sequence_parallel"},
      {"zero_stage", "parallel.zero"},
      {"num_layers", "model.num_hidden_layers"},
      {"ffn_hidden_size", "model.intermediate_size"},
      {"num_experts", "model.n_routed_experts"},
      {"moe_router_topk", "model.num_experts_per_tok"},
      {"top_k", "model.num_experts_per_tok"},
      {"train_iters", "train.steps"},
      {"max_steps", "train.steps"},
      {"batch_size", "train.global_batch_size"},
      {"gbs", "train.global_batch_size"},
      {"mbs", "train.micro_batch_size"},
      {"mtp_loss_factor", "train.mtp_lambda"},
      {"moe_router_bias_update_rate", "router.bias_update_speed"},
      {"moe_aux_loss_coeff", "router.balance_alpha"},
      {"save_interval", "checkpoint.interval"},
      {"load_checkpoint", "checkpoint.resume"},
      {"dtype", "compute.precision"},
      {"device", "compute.backend"},
  };
  return names;
}

std::string advice(const std::string& key, const Fields& rows, const std::string& path) {
  std::vector<std::string> here;
  for (const Field& field : rows) here.push_back(field.name);
  const std::string plain = normalised(key);
  if (has(here, plain)) return cat("did you mean `", plain, "`?");

  std::vector<std::string> homes, everywhere;
  for (const auto& [name, home] : all_keys()) {
    everywhere.push_back(name);
    if (name == plain)
      homes.push_back(home.empty() ? cat("section `", name, "`") : cat("`", home, "`"));
  }
  constexpr size_t kMostHomes = 3;
  if (!homes.empty() && homes.size() <= kMostHomes)
    return cat("this key belongs to ", join(homes, " or "),
               path.empty() ? "" : cat(", not to `", path, "`"));
  for (const auto& [name, ours] : foreign_names())
    if (name == plain) return cat("here it is called `", ours, "`");
  if (const std::string near = nearest(plain, here); !near.empty())
    return cat("did you mean `", near, "`?");
  if (const std::string near = by_beginning(plain, here); !near.empty())
    return cat("did you mean `", near, "`?");
  constexpr size_t kLongEnough = 5;  // short words are near to too much
  if (const std::string near = nearest(plain, everywhere);
      !near.empty() && plain.size() >= kLongEnough)
    for (const auto& [name, home] : all_keys())
      if (name == near) return cat("did you mean `", join_path(home, near), "`?");
  return cat("known here: ", join(here, ", "));
}

}  // namespace moetrain
