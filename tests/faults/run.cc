// Whole steps of T0 in one process.
#include "run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/random.h"
#include "checkpoint/box.h"
#include "config/load.h"
#include "config/validate.h"

namespace moetrain {

namespace {

const char* const kT0 = R"(
model:
  vocab_size: 512
  hidden_size: 64
  intermediate_size: 128
  moe_intermediate_size: 32
  num_hidden_layers: 2
  num_attention_heads: 4
  n_shared_experts: 1
  n_routed_experts: 8
  num_experts_per_tok: 2
  n_group: 4
  topk_group: 2
  first_k_dense_replace: 1
  q_lora_rank: 32
  kv_lora_rank: 16
  qk_nope_head_dim: 16
  qk_rope_head_dim: 8
  v_head_dim: 16
)";

Config t0(int ranks, const std::vector<std::string>& settings) {
  std::vector<std::string> sets = {"model.num_nextn_predict_layers=0",
                                   "data.sequence_length=64",
                                   "train.global_batch_size=8",
                                   "train.micro_batch_size=1",
                                   "train.steps=100",
                                   "compute.precision=fp32",
                                   "compute.threads=1",
                                   "router.balance_alpha=0",
                                   "optimizer.weight_decay=0",
                                   "optimizer.clip_norm=1e9"};
  sets.insert(sets.end(), settings.begin(), settings.end());
  Config config = parse_config(kT0, "t0.yaml", ".", sets);
  resolve(config, ranks);
  validate(config, ranks);
  return config;
}

void fill(const Trial& trial, int64_t first, int64_t count, int64_t s, int64_t depths,
          int64_t vocab, Batch& batch) {
  batch.resize(count, s, depths);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t sample = trial.one_sample ? 0 : first + b;
    const int64_t present =
        trial.valid.empty() ? s : trial.valid[(first + b) % std::ssize(trial.valid)];
    const CounterRandom random(11, std::to_string(sample));
    for (int64_t i = 0; i < s; ++i) {
      batch.pos[b * s + i] = static_cast<int32_t>(i);
      batch.doc_start[b * s + i] = 0;
      for (int64_t k = 0; k <= depths; ++k) {
        batch.tokens_at(k)[b * s + i] = static_cast<int32_t>(random.bits(i + k) % vocab);
        batch.labels_at(k)[b * s + i] = static_cast<int32_t>(random.bits(i + k + 1) % vocab);
        batch.valid_at(k)[b * s + i] = i < s - k && i < present ? 1.0f : 0.0f;
      }
    }
  }
}

/// Puts this rank's box of a state into the whole.
void merge(const ShardOut& shard, std::vector<float>& whole) {
  whole.resize(numel(shard.global));
  std::vector<float> part(numel(shard.box.extent));
  shard.produce(part.data());
  const Box all{Shape(shard.global.size(), 0), shard.global};
  for_each_run(shard.box, shard.box, all, [&](int64_t from, int64_t to, int64_t n) {
    std::memcpy(whole.data() + to, part.data() + from, n * sizeof(float));
  });
}

/// Bytes of every state box this rank holds.
std::map<std::string, std::vector<std::byte>> boxes(Session& session) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const Port& port : session.plan().states) {
    const bool kept = port.name.starts_with("model.") || port.name.starts_with("lm_head") ||
                      port.name.starts_with("master:") || port.name.starts_with("m:") ||
                      port.name.starts_with("v:");
    if (!kept) continue;
    std::vector<std::byte> bytes(numel(port.extent) * size_of(port.global.dtype));
    session.executor().read(port, bytes.data(), bytes.size());
    std::string key = port.name + " from";
    for (int64_t b : port.begin) key += " " + std::to_string(b);
    key += " of";
    for (int64_t e : port.extent) key += " " + std::to_string(e);
    out[key] = std::move(bytes);
  }
  return out;
}

void initialise(Session& session, const Config& config, const Trial& trial) {
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& p : session.parameters()) by_name[p.name] = &p;
  session.load_parameters([&](const std::string& name, const Box& box, float* out) {
    initial_values(*by_name.at(name), config.model, 1234, box, out);
    if (trial.alter) trial.alter(name, box, out);
  });
}

}  // namespace

std::vector<float> Outcome::gradient(const std::string& parameter) const {
  std::vector<float> g = states.at("m:" + parameter);
  for (float& x : g) x *= 10;  // m = (1 - 0.9) g
  return g;
}

Outcome run(const Trial& trial) {
  const Config config = t0(trial.ranks, trial.settings);
  const int64_t s = config.data.sequence_length, batch = config.train.global_batch_size;
  const int64_t depths = config.model.num_nextn_predict_layers;
  Outcome out;
  std::map<std::string, std::vector<std::byte>> seen;
  std::mutex mutex;
  run_local_ranks(trial.ranks, trial.ranks, [&](Fabric& fabric) {
    const FillBatch filler = [&](int64_t first, int64_t count, Batch& b) {
      fill(trial, first, count, s, depths, config.model.vocab_size, b);
    };
    Session session(config, fabric);
    initialise(session, config, trial);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const ShardOut& shard : session.shards()) merge(shard, out.start[shard.name]);
    }
    fabric.barrier();
    for (int64_t step = 0; step < trial.steps; ++step) {
      Batch whole;
      filler(step * batch, batch, whole);
      std::vector<int64_t> valid;
      for (int64_t k = 0; k <= depths; ++k) {
        valid.push_back(std::count(whole.valid_at(k), whole.valid_at(k) + batch * s, 1.0f));
      }
      const StepSettings settings{trial.rate, step + 1, trial.mtp_lambda, trial.bias_speed};
      const StepResult result = session.train_step(step * batch, batch, valid, settings, filler);
      if (fabric.rank() == 0) out.steps.push_back(result);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (const ShardOut& shard : session.shards()) merge(shard, out.states[shard.name]);
    for (auto& [key, bytes] : boxes(session)) {
      const auto [at, is_new] = seen.emplace(key, bytes);
      if (!is_new && at->second != bytes) out.differing.push_back(key);
    }
  });
  return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double most = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - b[i]);
    if (!(d <= most)) most = d;
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  return scale > 0 ? most / scale : most;
}

ModelConfig t0_model(const std::vector<std::string>& settings) { return t0(1, settings).model; }

}  // namespace moetrain
