// Evaluating weights.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "checkpoint/json.h"
#include "config/validate.h"
#include "data/tokenizer/tokenizer.h"
#include "train/fabric.h"
#include "train/plans.h"

namespace moetrain {

namespace {

std::unique_ptr<Sampler> open_sampler(const Config& config, const EvaluateOptions& options,
                                      const Tokenizer& tokenizer, int64_t samples) {
  if (options.split == Split::kTrain) return training_sampler(config, tokenizer, samples);
  Config c = config;
  if (options.split == Split::kTest) {  // the validation share's place is taken by the test share
    c.data.validation.clear();
    if (c.data.split.size() > 2)
      c.data.split = {c.data.split[0] + c.data.split[1], c.data.split[2], 0};
  }
  auto sampler = validation_sampler(c, tokenizer, samples);
  if (!sampler) {
    throw UserError(cat("there is no ", name_of(options.split),
                        " data: give data.validation, or a share in data.split"));
  }
  return sampler;
}

}  // namespace

EvaluateResult evaluate_weights(const WeightSource& weights, Fabric& fabric,
                                const EvaluateOptions& options) {
  Config config = weights.config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Sampler> sampler;
  int64_t samples = 0;
  agree(fabric, [&] {
    resolve(config, fabric.size());
    validate(config, fabric.size());
    tokenizer = open_tokenizer(weights.tokenizer);
    const int64_t micro = config.train.micro_batch_size * *config.parallel.data;
    const int64_t steps = options.steps > 0 ? options.steps : config.train.validation_steps;
    samples = std::max(micro, steps * config.train.global_batch_size / micro * micro);
    sampler = open_sampler(config, options, *tokenizer, samples);
  });
  SessionOptions session_options;
  session_options.purpose = GraphPurpose::kEvaluate;
  std::optional<Session> session;
  session.emplace(config, fabric, session_options);
  agree(fabric, [&] { load_weights(*session, weights); });
  const std::vector<double> sums = session->evaluate(
      0, samples,
      [&](int64_t first, int64_t count, Batch& batch) { sampler->fill(first, count, batch); });
  EvaluateResult result;
  result.tokens = sampler->valid_counts(0, samples);
  for (size_t k = 0; k < sums.size(); ++k) {
    const int64_t n = result.tokens.at(k);
    result.loss.push_back(n > 0 ? sums[k] / static_cast<double>(n) : 0);
  }
  result.weights = weights.hf.empty() ? weights.checkpoint : weights.hf;
  return result;
}

std::string EvaluateResult::text() const {
  std::string out = weights + "\n";
  for (size_t k = 0; k < loss.size(); ++k) {
    char line[160];
    std::snprintf(line, sizeof line, "%-10s loss %.6f  perplexity %.4f  over %lld tokens\n",
                  k == 0 ? "main" : cat("mtp depth ", k).c_str(), loss[k], std::exp(loss[k]),
                  static_cast<long long>(tokens[k]));
    out += line;
  }
  return out;
}

std::string EvaluateResult::json() const {
  std::vector<std::string> losses;
  for (double l : loss) losses.push_back(json_number(l));
  return cat("{\"weights\": ", json_quote(weights), ", \"validation_loss\": ", losses.at(0),
             ", \"loss_per_depth\": [", join(losses, ", "), "], \"tokens\": [", join(tokens, ", "),
             "]}");
}

}  // namespace moetrain
