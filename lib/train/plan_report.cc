// A plan inspection as text, JSON, explanation, trace and difference.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/text.h"
#include "checkpoint/json.h"
#include "compile/shard/explain.h"
#include "model/flops.h"
#include "model/params.h"
#include "train/inspect_plan.h"

namespace moetrain {

namespace {

template <class... Args>
std::string format(const char* text, Args... args) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, text, args...);
  return buffer;
}

std::string size(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

int64_t process_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

struct MemoryRow {
  const char* name;
  const char* key;
  int64_t bytes;
};
std::vector<MemoryRow> rows_of(const PlanMemory& m) {
  return {{"weights", "weights", m.weights},
          {"fp32 masters", "masters", m.masters},
          {"AdamW moments", "moments", m.moments},
          {"gradients", "gradients", m.gradients},
          {"counters", "counters", m.other},
          {"inputs, outputs", "ports", m.ports},
          {"activations", "activations", m.arena},
          {"kernel scratch", "kernel_scratch", m.workspace},
          {"packed weights", "packed_weights", m.packed},
          {"token rows", "token_rows", m.rows},
          {"total", "total", m.total()}};
}

}  // namespace

std::string PlanInspection::text() const {
  const ParameterCounts counts = count_parameters(config_.model);
  const int64_t s = config_.data.sequence_length;
  const ParallelConfig& p = config_.parallel;
  std::string out = format(
      "model     %.6g B parameters, %.6g B active per token, %.6g GFLOP per token and step\n",
      counts.total / 1e9, counts.active / 1e9, training_flops_per_token(config_.model, s) / 1e9);
  out += cat("ranks     ", world_, " = data ", *p.data, " x context ", p.context, " x tensor ",
             p.tensor, " x pipeline ", p.pipeline, "; expert ", p.expert, ", zero ", p.zero,
             "; this is rank ", compiled_.plan.rank, "\n");
  out += cat("batch     ", config_.train.global_batch_size, " sequences of ", s, " tokens in ",
             config_.micro_batches(), " micro-batches\n");
  out += cat("machine   ", machine_.name, " [", machine_hash(machine_), "], ",
             p.ranks_per_node.value_or(world_), " ranks per node\n\nmemory of the rank\n");
  for (const MemoryRow& row : rows_of(memory_)) {
    out += format("  %-16s %12s\n", row.name, size(row.bytes).c_str());
  }
  out += format("  token rows at worst routing: %s\n", size(memory_.rows_worst).c_str());
  if (static_cast<double>(memory_.total()) > machine_.memory) {
    out += format("  does not fit: the machine has %s per rank\n",
                  human_bytes(machine_.memory).c_str());
  }
  out += "\ntraffic sent by the rank in one optimizer step\n";
  for (const TrafficLine& line : traffic_) {
    out += format("  %12s %6lld x %-16s %5lld ranks %-5s %9.3g ms  %s\n", size(line.bytes).c_str(),
                  static_cast<long long>(line.calls), line.op.c_str(),
                  static_cast<long long>(line.ranks), line.inter_node ? "inter" : "intra",
                  line.seconds * 1e3, line.name.c_str());
  }
  if (traffic_.empty()) out += "  none\n";
  out += cat("  inter-node ", size(inter_bytes_), ", intra-node ", size(intra_bytes_), "\n");
  if (!stages_text().empty()) out += "\n" + stages_text();
  out += format("\npredicted step %.4g s: compute %.4g s, exposed transfers %.4g s, bubble %.3g %%%s\n",
                time_.step, time_.compute, time_.exposed, time_.bubble * 100,
                stages_.count > 1 ? " (waiting for other stages)" : "");
  out += format("predicted MFU %.3g %%, %.4g tokens/s\n\ncompiler\n", time_.mfu * 100,
                time_.tokens_per_second);
  for (const PassTime& pass : compiled_.passes) {
    out += format("  %-20s %8.3f s %9zu nodes", pass.name.c_str(), pass.seconds, pass.nodes);
    if (pass.fused > 0) {
      out += cat(", ", pass.fused, " fused, ",
                 pass.bytes_saved > 0 ? size(pass.bytes_saved) + " of traffic saved" : "fewer launches");
    }
    out += "\n";
  }
  out += format("  %.3f s in all, this process needed %s\n", compile_seconds_,
                size(process_bytes()).c_str());
  std::map<std::string, int> notes;  // those of all layers together
  for (const std::string& note : compiled_.sharding.notes) ++notes[layer_pattern(note)];
  for (const auto& [note, times] : notes) {
    out += cat("note: ", note, times > 1 ? cat(" (", times, " times)") : "", "\n");
  }
  return out;
}

std::string PlanInspection::stages_text() const {
  std::string out;
  if (!kinds_.empty()) {
    out = format("%-44s %12s %12s %12s\n", "stages (a rank of the first of each kind)", "compute s",
                 "exposed s", "memory");
  }
  double slowest = 0;
  for (const StageKind& k : kinds_) slowest = std::max(slowest, k.compute + k.exposed);
  for (const StageKind& k : kinds_) {
    const std::string range = k.first == k.last ? cat(k.first) : cat(k.first, "-", k.last);
    out += format("  %-8s%-34s %12.4g %12.4g %12s%s%s\n", range.c_str(), k.holds.c_str(), k.compute,
                  k.exposed, size(k.memory).c_str(),
                  k.compute + k.exposed == slowest ? "  sets the pace" : "",
                  static_cast<double>(k.memory) > machine_.memory ? "  does not fit" : "");
  }
  return out;
}

std::string PlanInspection::json() const {
  const ParameterCounts counts = count_parameters(config_.model);
  std::string memory, traffic, passes, stages;
  for (const StageKind& k : kinds_) {
    stages += cat(stages.empty() ? "" : ", ", "{\"first\": ", k.first, ", \"last\": ", k.last,
                  ", \"holds\": ", json_quote(k.holds), ", \"compute_s\": ", json_number(k.compute),
                  ", \"exposed_comm_s\": ", json_number(k.exposed), ", \"memory\": ", k.memory, "}");
  }
  for (const MemoryRow& row : rows_of(memory_))
    memory += cat("\"", row.key, "\": ", row.bytes, ", ");
  memory += cat("\"token_rows_worst\": ", memory_.rows_worst);
  for (const TrafficLine& l : traffic_) {
    traffic += cat(traffic.empty() ? "" : ",", "\n    {\"name\": ", json_quote(l.name),
                   ", \"op\": ", json_quote(l.op), ", \"group\": ", json_quote(l.group),
                   ", \"ranks\": ", l.ranks, ", \"calls\": ", l.calls, ", \"bytes\": ", l.bytes,
                   ", \"link\": \"", l.inter_node ? "inter" : "intra",
                   "\", \"seconds\": ", json_number(l.seconds), "}");
  }
  for (const PassTime& pass : compiled_.passes) {
    passes += cat(passes.empty() ? "" : ", ", "{\"name\": ", json_quote(pass.name),
                  ", \"seconds\": ", json_number(pass.seconds), ", \"nodes\": ", pass.nodes,
                  ", \"fused\": ", pass.fused, ", \"bytes_saved\": ", pass.bytes_saved, "}");
  }
  return cat("{\n  \"parameters\": ", counts.total, ", \"active_parameters\": ", counts.active,
             ",\n  \"flops_per_token\": ",
             json_number(training_flops_per_token(config_.model, config_.data.sequence_length)),
             ",\n  \"world_size\": ", world_, ", \"rank\": ", compiled_.plan.rank,
             ", \"micro_batches\": ", config_.micro_batches(), ",\n  \"memory\": {", memory,
             "},\n  \"stages\": [", stages, "],\n  \"collectives\": [", traffic, "],\n  \"bytes_inter_node\": ", inter_bytes_,
             ", \"bytes_intra_node\": ", intra_bytes_,
             ",\n  \"step_time_s\": ", json_number(time_.step),
             ", \"compute_s\": ", json_number(time_.compute),
             ", \"exposed_comm_s\": ", json_number(time_.exposed),
             ", \"bubble\": ", json_number(time_.bubble), ", \"mfu\": ", json_number(time_.mfu),
             ", \"tokens_per_second\": ", json_number(time_.tokens_per_second),
             ",\n  \"compile_seconds\": ", json_number(compile_seconds_),
             ", \"process_bytes\": ", process_bytes(), ",\n  \"passes\": [", passes, "]\n}");
}

std::string PlanInspection::trace() const {
  std::string events;
  for (const TimedInstruction& t : timeline_) {
    events += cat(events.empty() ? "" : ",\n", "{\"ph\": \"X\", \"pid\": ", compiled_.plan.rank,
                  ", \"tid\": ", t.lane, ", \"name\": ", json_quote(t.name),
                  ", \"ts\": ", json_number(t.begin * 1e6),
                  ", \"dur\": ", json_number(t.seconds * 1e6), "}");
  }
  return cat("{\"traceEvents\": [\n", events, "\n]}\n");
}

std::string PlanInspection::explain() const {
  std::string out = "\n" + moetrain::explain(graph_, mesh_, links_, compiled_.sharding);
  if (!compiled_.local.dispatches.empty()) out += "\ntoken transports: op, transport, prices\n";
  for (const DispatchNote& note : compiled_.local.dispatches) out += "  " + to_string(note) + "\n";
  return out;
}

std::string PlanInspection::layout_diff(const PlanInspection& other) const {
  return explain_diff(graph_, mesh_, compiled_.sharding, other.graph_, other.mesh_,
                      other.compiled_.sharding);
}

std::string plan_diff(const PlanInspection& a, const PlanInspection& b) {
  std::string out;
  auto line = [&](const std::string& name, double x, double y, bool bytes) {
    if (x == y) return;
    const std::string from = bytes ? human_bytes(x) : format("%.4g", x);
    const std::string to = bytes ? human_bytes(y) : format("%.4g", y);
    out += format("%-60s %12s -> %12s\n", name.c_str(), from.c_str(), to.c_str());
  };
  const auto rows_a = rows_of(a.memory()), rows_b = rows_of(b.memory());
  for (size_t i = 0; i < rows_a.size(); ++i) {
    line(cat("memory ", rows_a[i].name), static_cast<double>(rows_a[i].bytes),
         static_cast<double>(rows_b[i].bytes), true);
  }
  std::map<std::string, std::pair<double, double>> moved;
  for (const TrafficLine& l : a.traffic()) {
    moved[cat(l.name, " ", l.op)].first += static_cast<double>(l.bytes);
  }
  for (const TrafficLine& l : b.traffic()) {
    moved[cat(l.name, " ", l.op)].second += static_cast<double>(l.bytes);
  }
  for (const auto& [name, bytes] : moved) line(name, bytes.first, bytes.second, true);
  line("inter-node bytes", static_cast<double>(a.inter_node_bytes()),
       static_cast<double>(b.inter_node_bytes()), true);
  line("intra-node bytes", static_cast<double>(a.intra_node_bytes()),
       static_cast<double>(b.intra_node_bytes()), true);
  line("step time (s)", a.time().step, b.time().step, false);
  line("exposed transfers (s)", a.time().exposed, b.time().exposed, false);
  line("MFU", a.time().mfu, b.time().mfu, false);
  out += a.layout_diff(b);
  return out.empty() ? "no difference\n" : out;
}

}  // namespace moetrain
