// Chrome trace events.
#include "runtime/trace.h"

#include <cstdio>
#include <map>

#include "base/text.h"

namespace moetrain {

namespace {

struct Kind {
  std::string operator()(const Launch& l) const { return l.op->name; }
  std::string operator()(const Collective& c) const { return c.op->name; }
  std::string operator()(const Bind&) const { return "bind"; }
  std::string operator()(const Alloc&) const { return ""; }
  std::string operator()(const Free&) const { return ""; }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void TraceRecorder::ran(const Segment& segment, const Instruction& instruction,
                        const Executed& times) {
  const std::string kind = std::visit(Kind{}, instruction.what);
  if (kind.empty()) return;
  events_.push_back({instruction.name, kind, segment.name, instruction.lane,
                     std::holds_alternative<Collective>(instruction.what), times});
}

std::string TraceRecorder::events() const {
  std::string text = cat("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", rank_,
                         ",\"args\":{\"name\":\"rank ", rank_, "\"}}");
  for (int lane = 0; lane < kLaneCount; ++lane) {
    text += cat(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", rank_, ",\"tid\":", lane,
                ",\"args\":{\"name\":\"", lane_name(lane), "\"}}");
  }
  char times[80], exposed[48];
  for (const Span& s : events_) {
    std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", s.times.begin * 1e6,
                  (s.times.end - s.times.begin) * 1e6);
    std::snprintf(exposed, sizeof exposed, ",\"exposed_us\":%.3f", s.times.exposed * 1e6);
    text += cat(",\n{\"ph\":\"X\",\"pid\":", rank_, ",\"tid\":", s.lane, ",", times, ",\"name\":\"",
                escaped(s.name), "\",\"cat\":\"", s.kind, "\",\"args\":{\"op\":\"", s.kind,
                "\",\"segment\":\"", s.segment, "\"", s.communication ? exposed : "", "}}");
  }
  return text;
}

std::string TraceRecorder::summary() const {
  std::map<std::string, CommSeconds> sums;
  for (const Span& s : events_) {
    if (!s.communication) continue;
    for (const std::string& kind : {s.kind, std::string("all")}) {
      sums[kind].total += s.times.end - s.times.begin;
      sums[kind].exposed += s.times.exposed;
    }
  }
  std::vector<std::string> members;
  char numbers[96];
  for (const auto& [kind, sum] : sums) {
    std::snprintf(numbers, sizeof numbers, "{\"total_ms\":%.3f,\"exposed_ms\":%.3f}",
                  sum.total * 1e3, sum.exposed * 1e3);
    members.push_back(cat("\"", kind, "\":", numbers));
  }
  return cat("\"rank ", rank_, "\":{", join(members, ","), "}");
}

std::string trace_json(const std::vector<std::string>& events_of_ranks,
                       const std::vector<std::string>& summaries) {
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"communication\":{" + join(summaries, ",\n") +
         "}},\n\"traceEvents\":[\n" + join(events_of_ranks, ",\n") + "\n]}\n";
}

}  // namespace moetrain
