// The stages of a pipeline that one rank's plan does not show: one rank of each kind is compiled as well.
#include <map>
#include <optional>
#include <string>

#include "base/text.h"
#include "train/inspect_plan.h"
#include "train/pipeline.h"

namespace moetrain {

namespace {

/// What the chunks of each stage hold.
std::vector<std::string> contents(const Config& config, const Stages& stages) {
  const std::vector<int> chunks = config_chunks(config);
  const auto layers = static_cast<size_t>(config.model.num_hidden_layers);
  struct Counts {
    int dense = 0, moe = 0, mtp = 0;
    bool first = false, last = false;
  };
  std::vector<Counts> counts(stages.count);
  counts[stages.stage_of(0)].first = true;
  counts[stages.stage_of(stages.chunks() - 1)].last = true;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Counts& c = counts[stages.stage_of(chunks[i])];
    ++(i >= layers ? c.mtp : config.model.is_dense(static_cast<int64_t>(i)) ? c.dense : c.moe);
  }
  std::vector<std::string> out;
  for (const Counts& c : counts) {
    std::vector<std::string> parts;
    if (c.first) parts.push_back("embedding");
    if (c.dense > 0) parts.push_back(cat(c.dense, " dense"));
    if (c.moe > 0) parts.push_back(cat(c.moe, " MoE"));
    if (c.mtp > 0) parts.push_back(cat(c.mtp, " MTP"));
    if (c.last) parts.push_back("head");
    out.push_back(join(parts, " + "));
  }
  return out;
}

}  // namespace

void PlanInspection::include_stages() {
  kinds_.clear();
  if (stages_.count == 1) return;
  const std::vector<std::string> holds = contents(config_, stages_);
  const int ranks = static_cast<int>(mesh_.size());
  struct Known {
    PassTimes passes;
    StageKind kind;
    double busy;
  };
  std::map<std::string, Known> known;
  std::string last_key;
  std::vector<PassTimes> passes;
  for (int s = 0; s < stages_.count; ++s) {
    // Stages of equal contents differ where nodes are cut through them, and where layouts name layers.
    std::string key = cat(holds[s], ", from place ", s * ranks % links_.ranks_per_node, " of a node");
    if (!config_.parallel.shard.empty()) key += cat(", stage ", s);
    auto at = known.find(key);
    if (at == known.end()) {
      const bool mine = compiled_.plan.rank == s * ranks;
      std::optional<PlanInspection> other;
      if (!mine) other.emplace(config_, s * ranks, world_, machine_);
      PlanInspection& it = mine ? *this : *other;
      const StageKind kind{s, s, holds[s], it.time_.compute, it.time_.exposed, it.memory_.total()};
      at = known.emplace(key, Known{it.pass_times(), kind, it.busy_}).first;
    }
    const Known& k = at->second;
    passes.push_back(k.passes);
    if (last_key == key) {
      kinds_.back().last = s;
    } else {
      kinds_.push_back(k.kind);
      kinds_.back().first = kinds_.back().last = s;
    }
    last_key = key;
  }
  std::vector<std::pair<int, double>> busy;
  for (const auto& [key, k] : known) busy.emplace_back(k.kind.first, k.busy);
  fit_pipeline(passes, busy);
}

}  // namespace moetrain
