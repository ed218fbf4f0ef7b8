// A small valid configuration that tests bend, and helpers to see what is said about it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"

namespace moetrain {

inline const std::string kSample = R"(run: {name: t0, output_dir: out}
model:
  vocab_size: 512
  hidden_size: 64
  intermediate_size: 128
  moe_intermediate_size: 32
  num_hidden_layers: 4
  num_attention_heads: 8
  n_routed_experts: 8
  num_experts_per_tok: 2
  n_group: 4
  topk_group: 2
  first_k_dense_replace: 1
  q_lora_rank: 32
  kv_lora_rank: 16
  qk_rope_head_dim: 8
  qk_nope_head_dim: 16
  v_head_dim: 16
data:
  train: [{prefix: d0}]
  sequence_length: 64
parallel:
  tensor: 1
train:
  steps: 20
  global_batch_size: 8
)";

inline Config sample(const std::vector<std::string>& sets = {}) {
  return parse_config(kSample, "t.yaml", "", sets);
}

/// What loading complains about, one complaint per line; "" if nothing.
inline std::string faults_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    parse_config(text, "t.yaml", "", sets);
    return "";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), kExitRefused);
    return error.what();
  }
}

/// What validation complains about after resolve.
inline std::string rules_broken(const std::vector<std::string>& sets, int64_t world_size) {
  Config config = sample(sets);
  resolve(config, world_size);
  try {
    validate(config, world_size);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected \"" << part << "\" in:\n" << text;
}

/// kSample with one line replaced or, if `old_line` is empty, with text added at the end.
inline std::string bent(const std::string& old_text, const std::string& new_text) {
  std::string text = kSample;
  if (old_text.empty()) return text + new_text;
  const size_t at = text.find(old_text);
  EXPECT_NE(at, std::string::npos) << old_text;
  return text.replace(at, old_text.size(), new_text);
}

}  // namespace moetrain
