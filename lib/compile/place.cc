// Placing buffers.
#include "compile/place.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compile/lower.h"
#include "compile/tape.h"

namespace moetrain {

namespace {

/// Per root slot the segments that touch it.
std::map<int, std::set<int>> touching_segments(const Plan& plan) {
  std::map<int, std::set<int>> touching;
  std::vector<int> slots;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    for (const Instruction& instruction : plan.segments[i].instructions) {
      touched_slots(plan, instruction, slots);
      for (int s : slots) touching[s].insert(static_cast<int>(i));
    }
  }
  return touching;
}

bool belongs_to_frames(const Slot& slot, size_t segments, bool in_update) {
  switch (slot.home) {
    case Home::kState: return false;
    case Home::kInput: return !slot.type.shape.empty() && !in_update;  // scalars hold for a whole step
    case Home::kRagged:
    case Home::kHost:
    case Home::kFrame: return true;
    case Home::kArena:
    case Home::kOutput: return segments > 1;
  }
  return false;
}

}  // namespace

void place_frames(Plan& plan) {
  int chunks = 1;
  for (const Segment& s : plan.segments) chunks = std::max(chunks, s.chunk + 1);
  plan.frames.assign(chunks, {});
  std::vector<std::set<int>> uses(plan.segments.size());
  for (const auto& [slot, segments] : touching_segments(plan)) {
    Slot& s = plan.slots[slot];
    int group = chunks;
    bool in_update = false;
    for (int i : segments) {
      const int chunk = plan.segments[i].chunk;
      in_update |= chunk < 0;
      if (chunk >= 0) group = std::min(group, chunk);
    }
    if (!belongs_to_frames(s, segments.size(), in_update)) continue;
    MT_CHECK(!in_update, "'", s.name, "' lives from a micro-batch into the update");
    s.frame = group;
    if (s.home == Home::kArena || s.home == Home::kOutput) s.home = Home::kFrame;
    if (s.home == Home::kFrame || s.home == Home::kInput) {
      s.offset = plan.frames[group].bytes;
      plan.frames[group].bytes += (s.bytes + 63) / 64 * 64;
    }
    for (int i : segments) uses[i].insert(group);
  }
  for (Slot& s : plan.slots) {
    if (s.alias < 0) continue;
    const Slot& of = plan.slots[root_slot(plan, static_cast<int>(&s - plan.slots.data()))];
    s.frame = of.frame;
    s.home = of.home;
  }
  for (const Slot& s : plan.slots) {
    if (s.extent >= 0) plan.extents[s.extent].frame = s.frame;
  }
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    Segment& segment = plan.segments[i];
    for (const Instruction& instruction : segment.instructions) {
      const auto* bind = std::get_if<Bind>(&instruction.what);
      if (bind == nullptr) continue;
      for (int e : bind->extents) plan.extents[e].frame = plan.slots[bind->host].frame;
    }
    if (segment.chunk >= 0) uses[i].insert(segment.chunk);
    segment.frames.assign(uses[i].begin(), uses[i].end());
  }
}

void place_arena(Plan& plan) {
  std::vector<Interval> intervals;
  std::vector<int> owner, slots;
  std::map<int, size_t> open;
  int time = 0, first = 0;
  for (const Segment& segment : plan.segments) {
    open.clear();
    for (const Instruction& instruction : segment.instructions) {
      touched_slots(plan, instruction, slots);
      for (int s : slots) {
        if (plan.slots[s].home != Home::kArena) continue;
        auto [at, fresh] = open.try_emplace(s, intervals.size());
        if (fresh) {
          intervals.push_back({time, time, plan.slots[s].bytes, 0});
          owner.push_back(s);
        }
        int& end = intervals[at->second].end;
        end = std::max({end, time, first + instruction.done});
      }
      ++time;
    }
    first = time;
  }
  plan.arena_bytes = place_intervals(intervals);
  for (size_t i = 0; i < intervals.size(); ++i) plan.slots[owner[i]].offset = intervals[i].offset;
}

void merge_frames(Plan& plan) {
  for (Segment& segment : plan.segments) {
    std::set<int> frames;
    for (int part : segment.parts) {
      frames.insert(plan.segments[part].frames.begin(), plan.segments[part].frames.end());
    }
    if (!segment.parts.empty()) segment.frames.assign(frames.begin(), frames.end());
  }
}

namespace {

int64_t worst_bytes(const Plan& plan, const Slot& slot) {
  int64_t row = static_cast<int64_t>(size_of(slot.type.dtype));
  for (size_t d = 2; d < slot.type.shape.size(); ++d) row *= slot.type.shape[d];
  return plan.extents[slot.extent].largest * row;
}

}  // namespace

void measure_rows(Plan& plan, const std::vector<int>& segments) {
  struct Rows {
    int64_t bytes = 0, worst = 0, peak = 0, worst_peak = 0;
  };
  std::vector<Rows> change(plan.segments.size());
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    Rows& r = change[i];
    for (const Instruction& instruction : plan.segments[i].instructions) {
      if (const auto* a = std::get_if<Alloc>(&instruction.what)) {
        r.bytes += plan.slots[a->slot].bytes;
        r.worst += worst_bytes(plan, plan.slots[a->slot]);
      } else if (const auto* f = std::get_if<Free>(&instruction.what)) {
        r.bytes -= plan.slots[f->slot].bytes;
        r.worst -= worst_bytes(plan, plan.slots[f->slot]);
      }
      r.peak = std::max(r.peak, r.bytes);
      r.worst_peak = std::max(r.worst_peak, r.worst);
    }
  }
  int64_t now = 0, worst = 0;
  plan.ragged_bytes = plan.ragged_bytes_worst = 0;
  for (int s : segments) {
    plan.ragged_bytes = std::max(plan.ragged_bytes, now + change[s].peak);
    plan.ragged_bytes_worst = std::max(plan.ragged_bytes_worst, worst + change[s].worst_peak);
    now += change[s].bytes;
    worst += change[s].worst;
  }
  MT_CHECK(now == 0 && worst == 0, "rows of ", now, " bytes are never freed");
}

}  // namespace moetrain
