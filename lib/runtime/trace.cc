// Chrome trace events.
#include "runtime/trace.h"

#include <cstdio>

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

void TraceRecorder::ran(const Segment& segment, const Instruction& instruction, double begin,
                        double end) {
  const std::string kind = std::visit(Kind{}, instruction.what);
  if (kind.empty()) return;
  events_.push_back({instruction.name, kind, segment.name, instruction.lane, begin, end});
}

std::string TraceRecorder::events() const {
  std::string text = cat("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", rank_,
                         ",\"args\":{\"name\":\"rank ", rank_, "\"}}");
  char times[80];
  for (const Span& s : events_) {
    std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", s.begin * 1e6,
                  (s.end - s.begin) * 1e6);
    text += cat(",\n{\"ph\":\"X\",\"pid\":", rank_, ",\"tid\":", s.lane, ",", times, ",\"name\":\"",
                escaped(s.name), "\",\"cat\":\"", s.kind, "\",\"args\":{\"op\":\"", s.kind,
                "\",\"segment\":\"", s.segment, "\"}}");
  }
  return text;
}

std::string trace_json(const std::vector<std::string>& events_of_ranks) {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + join(events_of_ranks, ",\n") + "\n]}\n";
}

}  // namespace moetrain
