// Sampling.
#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "config/validate.h"
#include "data/tokenizer/tokenizer.h"

namespace moetrain {

int32_t sample_token(const std::vector<float>& logits, double temperature, double top_p, double u,
                     int64_t allowed) {
  const size_t n = allowed > 0 ? std::min<size_t>(allowed, logits.size()) : logits.size();
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (temperature <= 0) return order.front();
  std::vector<double> weight(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) {
    weight[i] = std::exp((logits[order[i]] - logits[order.front()]) / temperature);
    total += weight[i];
  }
  size_t kept = 0;
  double reached = 0;
  while (kept < n && (kept == 0 || reached < top_p * total)) reached += weight[kept++];
  double left = u * reached;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

void generate_text(const WeightSource& weights, Fabric& fabric, const GenerateOptions& options,
                   const std::function<void(const std::string&)>& say) {
  if (fabric.size() > 1) {
    throw UserError(
        cat("generate runs in one process, not in ", fabric.size(), ": start it without mpirun"));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw UserError(cat("--top-p ", options.top_p, " must be above 0 and at most 1"));
  }
  Config config = weights.config;
  config.parallel = ParallelConfig{};
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 1;
  config.train.batch_ramp.clear();
  resolve(config, 1);
  validate(config, 1);
  const auto tokenizer =
      open_tokenizer(options.tokenizer.empty() ? weights.tokenizer : options.tokenizer);
  std::vector<int32_t> ids = tokenizer->encode(options.prompt);
  for (int32_t id : ids) {
    if (id >= config.model.vocab_size) {
      throw UserError(cat("the tokenizer gives id ", id, ", but the model has only ",
                          config.model.vocab_size, " ids: it is not this model's tokenizer"));
    }
  }
  // a model starts documents after the token that ends the one before
  if (ids.empty()) ids.push_back(static_cast<int32_t>(std::max<int64_t>(tokenizer->eod(), 0)));

  SessionOptions session_options;
  session_options.purpose = GraphPurpose::kGenerate;
  Session session(config, fabric, session_options);
  load_weights(session, weights);
  say(options.prompt);

  const int64_t window = config.data.sequence_length, vocab = config.model.vocab_size;
  const CounterRandom random(options.seed, "generate");
  StreamDecoder decoder(*tokenizer);
  for (int64_t t = 0; t < options.max_tokens; ++t) {
    const int64_t count = std::min<int64_t>(static_cast<int64_t>(ids.size()), window);
    session.feed(0, [&](int64_t, int64_t b, Batch& batch) {
      batch.resize(b, window, 0);
      std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
      std::copy(ids.end() - count, ids.end(), batch.tokens.begin());
      for (int64_t i = 0; i < window; ++i) batch.pos[i] = static_cast<int32_t>(i);
      std::fill(batch.doc_start.begin(), batch.doc_start.end(), 0);
    });
    session.executor().run("step");
    const std::vector<float> logits = session.output("logits");
    const auto row = logits.begin() + (count - 1) * vocab;
    const int32_t id = sample_token({row, row + vocab}, options.temperature, options.top_p,
                                    random.uniform(t), tokenizer->vocab_size());
    if (id == tokenizer->eod()) break;
    ids.push_back(id);
    const std::string text = decoder.push(id);
    if (!text.empty()) say(text);
  }
  const std::string rest = decoder.finish();
  if (!rest.empty()) say(rest);
}

}  // namespace moetrain
