// Text from a model: one token after the other over a fixed window, everything recomputed for each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/weights.h"

namespace moetrain {

struct GenerateOptions {
  std::string prompt;
  std::string tokenizer;  ///< empty: the weights' own
  int64_t max_tokens = 200;
  double temperature = 0.8;  ///< 0: the likeliest token, the lowest id of equals
  double top_p = 0.95;
  uint64_t seed = 1234;
};

/// Calls `say` with the prompt, then with text as it becomes certain, until `max_tokens` or the
/// end-of-document token. One rank only (UserError otherwise). The window is data.sequence_length
/// tokens; the oldest fall out.
void generate_text(const WeightSource& weights, Fabric& fabric, const GenerateOptions& options,
                   const std::function<void(const std::string&)>& say);

/// Draws a token from `logits`: of the likeliest ones whose probabilities reach `top_p`, by `u` in
/// [0, 1). Deterministic; equal probabilities rank by id. Ids from `allowed` on are never drawn (0:
/// all are).
int32_t sample_token(const std::vector<float>& logits, double temperature, double top_p, double u,
                     int64_t allowed = 0);

}  // namespace moetrain
