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
  if (stages_.count == 1) return;
  const std::vector<std::string> holds = contents(config_, stages_);
  const int ranks = static_cast<int>(mesh_.size());
  std::map<std::string, std::pair<PassTimes, double>> known;  // passes and busy seconds
  std::vector<PassTimes> passes;
  std::vector<double> busy;
  for (int s = 0; s < stages_.count; ++s) {
    if (known.count(holds[s]) == 0) {
      const bool mine = s == stage_;
      std::optional<PlanInspection> other;
      if (!mine) other.emplace(config_, s * ranks, world_, machine_);
      PlanInspection& it = mine ? *this : *other;
      known[holds[s]] = {it.pass_times(), it.busy_};
      kinds_.push_back({s, s, holds[s], it.time_.compute, it.time_.exposed, it.memory_.total()});
    }
    for (StageKind& kind : kinds_) {
      if (kind.holds == holds[s]) kind.last = s;
    }
    passes.push_back(known[holds[s]].first);
    busy.push_back(known[holds[s]].second);
  }
  passes[stage_] = pass_times();
  busy[stage_] = busy_;
  fit_pipeline(passes, busy);
}

}  // namespace moetrain
