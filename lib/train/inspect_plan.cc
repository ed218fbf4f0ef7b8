// Compiling for inspection, and adding up what the plan says.
#include "train/inspect_plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <set>

#include "base/error.h"
#include "compile/plays.h"
#include "compile/predict.h"
#include "model/flops.h"
#include "plan/ledger.h"
#include "train/kernel_memory.h"
#include "train/pipeline.h"

namespace moetrain {

std::string layer_pattern(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool after_word =
        i > 1 && name[i - 1] == '.' && std::isdigit(static_cast<unsigned char>(name[i - 2])) == 0;
    if (digit && after_word) {
      out += '*';
      while (i + 1 < name.size() && std::isdigit(static_cast<unsigned char>(name[i + 1]))) ++i;
    } else {
      out += name[i];
    }
  }
  return out;
}

PlanInspection::PlanInspection(const Config& config, int rank, int64_t world,
                               const Machine& machine)
    : config_(config), machine_(machine), world_(world) {
  LinkModel links = machine.links();
  links.ranks_per_node = static_cast<int>(config.parallel.ranks_per_node.value_or(world));
  const auto begin = std::chrono::steady_clock::now();
  graph_ = build_graph(config.model, graph_options(config, {}));
  const CompileRequest request =
      compile_request(config, graph_, rank, static_cast<int>(world), links);
  mesh_ = request.mesh;
  stages_ = request.stages;
  order_ = request.order;
  stage_ = rank / mesh_.size();
  links_ = links;
  const std::chrono::duration<double> build = std::chrono::steady_clock::now() - begin;
  compiled_ = compile(graph_, request);
  compiled_.passes.insert(compiled_.passes.begin(), {"build", build.count(), graph_.nodes.size()});
  for (const PassTime& pass : compiled_.passes) compile_seconds_ += pass.seconds;
  measure_memory();
  measure_traffic();
  measure_time();
}

void PlanInspection::measure_memory() {
  const Plan& plan = compiled_.plan;
  std::set<int> counted;
  for (const Port& port : plan.states) {
    const int slot = root_slot(plan, port.slot);
    if (!counted.insert(slot).second) continue;
    const int64_t bytes = plan.slots[slot].bytes;
    const std::string& n = port.name;
    if (n.starts_with("master:")) {
      memory_.masters += bytes;
    } else if (n.starts_with("m:") || n.starts_with("v:")) {
      memory_.moments += bytes;
    } else if (n.starts_with("grad:")) {
      memory_.gradients += bytes;
    } else if (n.starts_with("sum.") || n.starts_with("load.")) {
      memory_.other += bytes;
    } else {
      memory_.weights += bytes;
    }
  }
  for (const Slot& slot : plan.slots) {
    const bool once = slot.alias < 0 && slot.frame < 0;
    if (once && (slot.home == Home::kInput || slot.home == Home::kOutput)) {
      memory_.ports += slot.bytes;
    }
  }
  memory_.arena = plan.arena_bytes + plan.frame_bytes();
  memory_.rows = plan.ragged_bytes;
  memory_.rows_worst = plan.ragged_bytes_worst;
  if (config_.compute.backend != Backend::kCpu) return;
  const auto device =
      make_cpu_device(cpu_options(config_, graph_, config_.compute.threads.value_or(1)));
  const KernelMemory kernels = kernel_memory(plan, *device);
  memory_.workspace = kernels.workspace;
  memory_.packed = kernels.packed;
}

/// How often each segment runs in a step.
std::vector<int64_t> PlanInspection::runs_of_segments() const {
  const Plan& plan = compiled_.plan;
  std::vector<int64_t> runs(plan.segments.size(), 0);
  const Timetable timetable =
      make_timetable(order_, stages_, static_cast<int>(config_.micro_batches()));
  bool updated = false;
  for (const Play& play : plays_of(plan, timetable.of_stage.at(stage_))) {
    ++runs[play.segment];
    updated |= play.updates;
  }
  for (size_t i = 0; i < runs.size() && !updated; ++i) {
    if (plan.segments[i].name == "update") runs[i] = 1;
  }
  return runs;
}

void PlanInspection::measure_traffic() {
  const Plan& plan = compiled_.plan;
  std::map<std::string, size_t> index;
  const std::vector<int64_t> runs = runs_of_segments();
  for (size_t s = 0; s < runs.size(); ++s) {
    const int64_t repeats = runs[s];
    if (repeats == 0) continue;
    for (const Instruction& in : plan.segments[s].instructions) {
      const auto* c = std::get_if<Collective>(&in.what);
      if (c == nullptr || plan.groups[c->group].ranks.size() < 2 || c->in.empty()) continue;
      const LinkTraffic sent =
          collective_traffic(plan, *c, consecutive_nodes(links_.ranks_per_node));
      const int64_t bytes = sent.inter_bytes + sent.intra_bytes;
      const Segment& segment = plan.segments[s];
      const std::string& part =
          segment.parts.empty() ? segment.name : plan.segments[segment.parts[in.side]].name;
      const std::string name = cat(part, " ", layer_pattern(in.name));
      const RankGroup& group = plan.groups[c->group];
      const auto [at, fresh] =
          index.emplace(cat(name, "|", c->op->name, "|", group.name), traffic_.size());
      if (fresh) {
        traffic_.push_back({name, c->op->name, group.name, static_cast<int64_t>(group.ranks.size()),
                            0, 0, crosses_nodes(group, links_), 0});
      }
      TrafficLine& line = traffic_[at->second];
      line.calls += repeats;
      line.bytes += repeats * bytes;
      line.seconds += static_cast<double>(repeats) * in.seconds;
      inter_bytes_ += repeats * sent.inter_bytes;
      intra_bytes_ += repeats * sent.intra_bytes;
    }
  }
  std::stable_sort(traffic_.begin(), traffic_.end(),
                   [](const TrafficLine& a, const TrafficLine& b) { return a.bytes > b.bytes; });
}

/// Lanes run their instructions in order; a waiting one starts when what it waits for has ended.
double PlanInspection::play(const Segment& segment, double start, bool record) {
  std::array<double, kLaneCount> free{};
  free.fill(start);
  std::vector<double> end(segment.instructions.size(), start);
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const Instruction& in = segment.instructions[i];
    double ready = std::max(free[in.lane], free[kComputeLane]);  // the host issues in order
    for (int w : in.waits) ready = std::max(ready, end[w]);
    const double seconds = in.seconds;
    if (record && seconds > 0) timeline_.push_back({in.name, in.lane, ready, seconds});
    if (in.lane == kComputeLane) {
      if (std::holds_alternative<Collective>(in.what)) {
        time_.exposed += record ? seconds : 0;
      } else if (record) {
        time_.compute += seconds;
        time_.exposed += ready - free[in.lane];
      }
    }
    free[in.lane] = end[i] = ready + seconds;
  }
  const double over = *std::max_element(free.begin(), free.end());
  if (record) time_.exposed += over - free[kComputeLane];  // a segment ends when its transfers have
  return over;
}

void PlanInspection::measure_time() {
  const Plan& plan = compiled_.plan;
  const std::vector<int64_t> runs = runs_of_segments();
  double now = 0;
  for (size_t s = 0; s < runs.size(); ++s) {
    if (runs[s] == 0) continue;
    const Segment& segment = plan.segments[s];
    const double compute = time_.compute, exposed = time_.exposed;
    const double length = play(segment, now, true) - now;
    const double repeats = static_cast<double>(runs[s]);
    time_.compute = compute + (time_.compute - compute) * repeats;
    time_.exposed = exposed + (time_.exposed - exposed) * repeats;
    busy_ += length * repeats;
    now += length;
  }
  // Every stage is taken to be as long as this one, its chunks as long as one another.
  fit_pipeline(std::vector<PassTimes>(stages_.count, pass_times()), {{stage_, busy_}});
}

/// Of a chunk of this stage, on average.
PassTimes PlanInspection::pass_times() {
  auto alone = [&](char kind) {
    double length = 0;
    for (const Segment& segment : compiled_.plan.segments) {
      if (segment.parts.empty() && segment.name[0] == kind) length += play(segment, 0, false);
    }
    return length / stages_.per_stage;
  };
  PassTimes times{alone('F'), alone('B') + alone('W'), alone('W'), 0};
  double both = 0;
  int pairs = 0;
  for (const Segment& segment : compiled_.plan.segments) {
    if (segment.parts.empty() || segment.name[0] != 'F') continue;
    both += play(segment, 0, false);
    ++pairs;
  }
  times.both = pairs > 0 ? both / pairs : times.forward + times.backward;
  return times;
}

void PlanInspection::fit_pipeline(const std::vector<PassTimes>& passes,
                                  const std::vector<std::pair<int, double>>& busy) {
  time_.step = busy_;
  if (stages_.count > 1) {
    const Played played = play_stages(
        make_timetable(order_, stages_, static_cast<int>(config_.micro_batches())), passes,
        order_ == PipelineOrder::kForwardOnly);
    double update = 0;  // what a stage does beyond its passes; all stages wait for the last one's
    for (const auto& [stage, seconds] : busy) update = std::max(update, seconds - played.busy[stage]);
    time_.step = played.time + update;
    time_.bubble = std::max(0.0, 1 - busy_ / time_.step);
  }
  rate();
}

void PlanInspection::rate() {
  const double tokens =
      static_cast<double>(config_.train.global_batch_size * config_.data.sequence_length);
  const double flops = tokens / static_cast<double>(world_) *
                       training_flops_per_token(config_.model, config_.data.sequence_length);
  const double peak =
      config_.compute.precision == Precision::kBf16 ? machine_.bf16_flops : machine_.fp32_flops;
  if (time_.step > 0) {
    time_.mfu = flops / time_.step / peak;
    time_.tokens_per_second = tokens / time_.step;
  }
}

}  // namespace moetrain
