// Running layouts in one process.
#include "layout_run.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/random.h"
#include "checkpoint/box.h"
#include "config/load.h"
#include "config/validate.h"

namespace moetrain {

std::vector<std::string> tiny_settings(bool mtp) {
  return {mtp ? "model.num_nextn_predict_layers=1" : "model.num_nextn_predict_layers=0",
          "data.sequence_length=32",
          "train.global_batch_size=8",
          "train.micro_batch_size=1",
          "train.steps=5",
          "compute.precision=fp32",
          "compute.threads=1",
          "router.balance_alpha=0.01",
          "router.bias_update_speed=0.001",
          "optimizer.learning_rate=0.002"};
}

namespace {

const char* const kModel = R"(
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
  routed_scaling_factor: 2.5
  first_k_dense_replace: 1
  q_lora_rank: 32
  kv_lora_rank: 16
  qk_nope_head_dim: 16
  qk_rope_head_dim: 8
  v_head_dim: 16
  initializer_range: 0.1
)";

Config tiny_config(int ranks, const std::vector<std::string>& settings, bool mtp) {
  std::vector<std::string> sets = tiny_settings(mtp);
  sets.insert(sets.end(), settings.begin(), settings.end());
  Config config = parse_config(kModel, "tiny.yaml", ".", sets);
  resolve(config, ranks);
  validate(config, ranks);
  return config;
}

}  // namespace

void fill_synthetic(int64_t first, int64_t count, int64_t sequence, int64_t depths, int64_t vocab,
                    Batch& batch) {
  batch.resize(count, sequence, depths);
  for (int64_t b = 0; b < count; ++b) {
    const CounterRandom random(7, std::to_string(first + b));
    std::vector<int32_t> text(sequence + depths + 2);
    text[0] = static_cast<int32_t>(random.bits(0) % vocab);
    for (size_t i = 1; i < text.size(); ++i) {
      text[i] = static_cast<int32_t>((text[i - 1] * 5 + random.bits(i) % 7) % vocab);
    }
    for (int64_t i = 0; i < sequence; ++i) {
      batch.pos[b * sequence + i] = static_cast<int32_t>(i);
      batch.doc_start[b * sequence + i] = 0;
      for (int64_t k = 0; k <= depths; ++k) {
        batch.tokens_at(k)[b * sequence + i] = text[i + k];
        batch.labels_at(k)[b * sequence + i] = text[i + k + 1];
        batch.valid_at(k)[b * sequence + i] = i < sequence - k ? 1.0f : 0.0f;
      }
    }
  }
}

LayoutRun run_layout(int ranks, int steps, const std::vector<std::string>& settings, bool mtp,
                     const std::vector<int>& poisoned) {
  const Config config = tiny_config(ranks, settings, mtp);
  LayoutRun out;
  std::mutex mutex;
  const int64_t s = config.data.sequence_length, batch = config.train.global_batch_size;
  const int64_t depths = config.model.num_nextn_predict_layers;
  run_local_ranks(ranks, static_cast<int>(*config.parallel.ranks_per_node), [&](Fabric& fabric) {
    Session session(config, fabric);
    session.initialise(1234);
    std::vector<int64_t> valid;
    for (int64_t k = 0; k <= depths; ++k) valid.push_back(batch * (s - k));
    for (int step = 0; step < steps; ++step) {
      StepSettings rates{config.optimizer.learning_rate, step + 1, 0.3,
                         config.router.bias_update_speed};
      rates.poison = std::find(poisoned.begin(), poisoned.end(), step + 1) != poisoned.end();
      const StepResult r = session.train_step(
          step * batch, batch, valid, rates, [&](int64_t first, int64_t count, Batch& b) {
            fill_synthetic(first, count, s, depths, config.model.vocab_size, b);
          });
      if (fabric.rank() == 0) out.steps.push_back(r);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (const ShardOut& shard : session.shards()) {
      std::vector<float>& whole = out.weights[shard.name];
      whole.resize(numel(shard.global));
      std::vector<float> part(numel(shard.box.extent));
      shard.produce(part.data());
      const Box all{Shape(shard.global.size(), 0), shard.global};
      for_each_run(shard.box, shard.box, all, [&](int64_t from, int64_t to, int64_t n) {
        std::memcpy(whole.data() + to, part.data() + from, n * sizeof(float));
      });
    }
    if (fabric.rank() == 0) {
      for (const Segment& segment : session.plan().segments) {
        for (const Instruction& i : segment.instructions) {
          out.collectives += std::holds_alternative<Collective>(i.what);
        }
      }
    }
  });
  return out;
}

}  // namespace moetrain
