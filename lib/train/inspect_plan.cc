// Compiling for inspection, and adding up what the plan says.
#include "train/inspect_plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <set>

#include "base/error.h"
#include "model/flops.h"
#include "plan/ledger.h"
#include "train/pipeline.h"

namespace moetrain {

namespace {

using Kind = ReshardStep::Kind;

Kind kind_of(const std::string& op) {
  if (op == "all_gather") return Kind::kAllGather;
  if (op == "reduce_scatter") return Kind::kReduceScatter;
  if (op == "all_reduce") return Kind::kAllReduce;
  return Kind::kAllToAll;
}

}  // namespace

std::string layer_pattern(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool after_word = i > 1 && name[i - 1] == '.' &&
                            std::isdigit(static_cast<unsigned char>(name[i - 2])) == 0;
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
    int slot = port.slot;
    while (plan.slots[slot].alias >= 0) slot = plan.slots[slot].alias;
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
}

bool PlanInspection::crosses_nodes(int group) const {
  const std::vector<int>& ranks = compiled_.plan.groups[group].ranks;
  const int per_node = static_cast<int>(config_.parallel.ranks_per_node.value_or(world_));
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int r) { return r / per_node != ranks.front() / per_node; });
}

void PlanInspection::measure_traffic() {
  const Plan& plan = compiled_.plan;
  std::map<std::string, size_t> index;
  for (const Segment& segment : plan.segments) {
    const int64_t repeats = segment.chunk >= 0 ? config_.micro_batches() : 1;
    for (const Instruction& in : segment.instructions) {
      const auto* c = std::get_if<Collective>(&in.what);
      if (c == nullptr || plan.groups[c->group].ranks.size() < 2 || c->in.empty()) continue;
      const LinkTraffic sent = collective_traffic(plan, *c, consecutive_nodes(links_.ranks_per_node));
      const int64_t bytes = sent.inter_bytes + sent.intra_bytes;
      const std::string name = cat(segment.name, " ", layer_pattern(in.name));
      const RankGroup& group = plan.groups[c->group];
      const auto [at, fresh] =
          index.emplace(cat(name, "|", c->op->name, "|", group.name), traffic_.size());
      if (fresh) {
        traffic_.push_back({name, c->op->name, group.name, static_cast<int64_t>(group.ranks.size()),
                            0, 0, crosses_nodes(c->group), 0});
      }
      TrafficLine& line = traffic_[at->second];
      line.calls += repeats;
      line.bytes += repeats * bytes;
      line.seconds += static_cast<double>(repeats) * seconds_of(in);
      inter_bytes_ += repeats * sent.inter_bytes;
      intra_bytes_ += repeats * sent.intra_bytes;
    }
  }
  std::stable_sort(traffic_.begin(), traffic_.end(),
                   [](const TrafficLine& a, const TrafficLine& b) { return a.bytes > b.bytes; });
}

double PlanInspection::seconds_of(const Instruction& in) const {
  const Plan& plan = compiled_.plan;
  if (const auto* c = std::get_if<Collective>(&in.what)) {
    if (c->in.empty()) return 0;  // the sender pays for a message between stages
    const std::vector<int>& ranks = plan.groups[c->group].ranks;
    std::map<int, int> nodes;
    const int per_node = static_cast<int>(config_.parallel.ranks_per_node.value_or(world_));
    for (int r : ranks) ++nodes[r / per_node];
    LinkModel links = machine_.links();
    links.ranks_per_node = per_node;
    const GroupShape shape{static_cast<int>(ranks.size()), static_cast<int>(nodes.size()),
                           nodes.begin()->second};
    const Kind kind = c->out.empty() ? Kind::kAllGather : kind_of(c->op->name);
    return collective_cost(links, kind, shape, plan.slots[c->in[0]].bytes).seconds;
  }
  const auto* launch = std::get_if<Launch>(&in.what);
  if (launch == nullptr || launch->op->cost == nullptr) return 0;
  auto types = [&](const std::vector<int>& slots) {
    std::vector<Type> out;
    for (int s : slots) {
      Type type = plan.slots[s].type;
      const int extent = plan.slots[s].extent;
      // cost functions read a ragged value's rows from dim 1
      if (type.ragged && extent >= 0) type.shape[1] = plan.extents[extent].expected;
      out.push_back(type);
    }
    return out;
  };
  const Cost cost = launch->op->cost(launch->attrs, types(launch->in), types(launch->out));
  const bool bf16 = config_.compute.precision == Precision::kBf16;
  double bytes = 0;  // a ragged type's leading dim would count its rows once per expert
  for (const auto* slots : {&launch->in, &launch->out}) {
    for (int s : *slots) bytes += static_cast<double>(plan.slots[s].bytes);
  }
  const double flops = bf16 ? machine_.bf16_flops : machine_.fp32_flops;
  return std::max(cost.matmul_flops / flops,
                  std::min(bytes, cost.bytes) / machine_.memory_bandwidth);
}

/// Lanes run their instructions in order; a waiting one starts when what it waits for has ended.
double PlanInspection::play(const Segment& segment, double start, bool record) {
  std::array<double, kLaneCount> free{};
  free.fill(start);
  std::vector<double> end(segment.instructions.size(), start);
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const Instruction& in = segment.instructions[i];
    double ready = free[in.lane];
    for (int w : in.waits) ready = std::max(ready, end[w]);
    const double seconds = seconds_of(in);
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
  return *std::max_element(free.begin(), free.end());
}

void PlanInspection::measure_time() {
  const int64_t micro_batches = config_.micro_batches();
  double now = 0;
  std::map<char, double> pass_seconds;  // F, B, W of all chunks
  for (const Segment& segment : compiled_.plan.segments) {
    const double compute = time_.compute, exposed = time_.exposed;
    const double length = play(segment, now, true) - now;
    const double repeats = segment.chunk >= 0 ? static_cast<double>(micro_batches) : 1;
    pass_seconds[segment.name[0]] += length;
    time_.compute = compute + (time_.compute - compute) * repeats;
    time_.exposed = exposed + (time_.exposed - exposed) * repeats;
    time_.step += length * repeats;
    now += length;
  }
  if (stages_.count > 1) {
    // Every stage is taken to be as long as this one.
    const double chunks = stages_.per_stage, f = pass_seconds['F'] / chunks,
                 w = pass_seconds['W'] / chunks, b = pass_seconds['B'] / chunks + w;
    const Timetable timetable = make_timetable(config_order(config_, graph_), stages_,
                                               static_cast<int>(micro_batches));
    const double length = moetrain::play(timetable, {f, b, w, f + b}).time;
    const double busy = static_cast<double>(micro_batches) * chunks * (f + b);
    time_.step += length - busy;
    if (length > 0) time_.bubble = (length - busy) / length;
  }
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
