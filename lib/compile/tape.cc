// From ordered work to instructions.
#include "compile/tape.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "compile/overlap.h"
#include "compile/predict.h"
#include "ops/pipe.h"

namespace moetrain {

namespace {

void append(std::vector<int>& to, const std::vector<int>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<int> read_slots(const Instruction& instruction) {
  if (const auto* l = std::get_if<Launch>(&instruction.what)) return l->in;
  if (const auto* c = std::get_if<Collective>(&instruction.what)) return c->in;
  if (const auto* b = std::get_if<Bind>(&instruction.what)) return b->counts;
  return {};
}

std::vector<int> written_slots(const Instruction& instruction) {
  if (const auto* l = std::get_if<Launch>(&instruction.what)) return l->out;
  if (const auto* c = std::get_if<Collective>(&instruction.what)) return c->out;
  if (const auto* b = std::get_if<Bind>(&instruction.what)) return {b->host};
  return {};
}

/// Where each piece of work stands in the order, which of them wait for which, and by when each is done.
struct Steps {
  std::vector<int> order;               // step -> work
  std::vector<int> lane;                // by step
  std::vector<std::vector<int>> waits;  // by step: steps
  std::vector<int> done;                // by step: step
};

/// A transfer whose result the very next step needs hides nothing: the compute lane runs it itself, which
/// saves the way over another thread.
void run_exposed_inline(Steps& steps, const std::vector<std::vector<int>>& after) {
  const int n = static_cast<int>(steps.order.size());
  for (int k = 0; k + 1 < n; ++k) {
    if (steps.lane[k] == kComputeLane || steps.lane[k] == kStageLane) continue;
    const std::vector<int>& needs = after[steps.order[k + 1]];
    const bool at_once = std::find(needs.begin(), needs.end(), steps.order[k]) != needs.end();
    if (at_once && steps.lane[k + 1] == kComputeLane) steps.lane[k] = kComputeLane;
  }
}

void find_waits(Steps& steps, const std::vector<std::vector<int>>& after) {
  const int n = static_cast<int>(steps.order.size());
  std::vector<int> step_of(n);
  for (int k = 0; k < n; ++k) step_of[steps.order[k]] = k;
  steps.waits.assign(n, {});
  steps.done.assign(n, n - 1);
  std::vector<int> joined(kLaneCount, -1);  // per lane: the last step the compute lane has waited for
  std::vector<int> open;
  int last_compute = -1;
  for (int k = 0; k < n; ++k) {
    const int lane = steps.lane[k];
    std::vector<int> latest(kLaneCount, -1);  // per lane, the last step it needs
    for (int a : after[steps.order[k]]) {
      const int step = step_of[a];
      latest[steps.lane[step]] = std::max(latest[steps.lane[step]], step);
    }
    if (lane != kComputeLane) latest[kComputeLane] = last_compute;  // memory it writes was theirs
    for (int l = 0; l < kLaneCount; ++l) {
      if (l == lane || latest[l] < 0) continue;
      if (l != kComputeLane && latest[l] <= joined[l]) continue;
      steps.waits[k].push_back(latest[l]);
      if (lane == kComputeLane) joined[l] = latest[l];
    }
    if (lane != kComputeLane) {
      open.push_back(k);
      continue;
    }
    last_compute = k;
    steps.done[k] = k;
    std::erase_if(open, [&](int o) {
      if (o > joined[steps.lane[o]]) return false;
      steps.done[o] = k;
      return true;
    });
  }
}

}  // namespace

void touched_slots(const Plan& plan, const Instruction& instruction, std::vector<int>& slots) {
  slots = read_slots(instruction);
  append(slots, written_slots(instruction));
  for (int& s : slots) s = root_slot(plan, s);
}

TapeWriter::TapeWriter(Plan& plan, const LinkModel& links, const OverlapOptions& overlap,
                       const std::vector<SegmentWork>& segments)
    : plan_(plan), links_(links), overlap_(overlap), segments_(segments) {
  std::vector<int> slots;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (const Instruction& instruction : segments[i].work) {
      touched_slots(plan, instruction, slots);
      for (int s : slots) {
        if (plan.slots[s].home == Home::kRagged) last_segment_[s] = static_cast<int>(i);
      }
    }
  }
}

int TapeWriter::lane_of(const Instruction& instruction) const {
  const auto* c = std::get_if<Collective>(&instruction.what);
  if (c == nullptr || !overlap_.on || c->op == &ops::kSend) return kComputeLane;
  const RankGroup& group = plan_.groups[c->group];
  if (c->op == &ops::kRecv) return kStageLane;
  if (group.ranks.size() < 2) return kComputeLane;
  return crosses_nodes(group, links_) ? kInterLane : kIntraLane;
}

/// Per piece of work the earlier ones it needs: what it reads was written, what it overwrites was read,
/// messages of one stream between stages keep their order, and nothing is received before what was sent
/// earlier is gone: the other stage may need it to answer. (The two sides of a pair need no such care: the
/// timetable pairs passes whose inputs both are on their way.)
std::vector<std::vector<int>> TapeWriter::dependencies(const std::vector<Instruction>& work) const {
  struct Use {
    int writer = -1;
    std::vector<int> readers;
  };
  std::map<std::pair<int, int>, Use> uses;  // by root slot and, where each micro-batch has its own, side
  std::map<int, int> streams;
  std::vector<int> sends;
  std::vector<std::vector<int>> after(work.size());
  for (size_t i = 0; i < work.size(); ++i) {
    const int me = static_cast<int>(i);
    std::vector<int>& mine = after[i];
    auto use_of = [&](int slot) -> Use& {
      const int root = root_slot(plan_, slot);
      return uses[{root, plan_.slots[root].frame >= 0 ? work[i].side : 0}];
    };
    for (int s : read_slots(work[i])) {
      Use& use = use_of(s);
      if (use.writer >= 0) mine.push_back(use.writer);
      use.readers.push_back(me);
    }
    for (int s : written_slots(work[i])) {
      Use& use = use_of(s);
      if (use.writer >= 0) mine.push_back(use.writer);
      append(mine, use.readers);
      use = {me, {}};
    }
    const auto* c = std::get_if<Collective>(&work[i].what);
    if (c != nullptr && ops::is_transfer(*c->op)) {
      const auto [at, fresh] = streams.emplace(c->group, me);
      if (!fresh) mine.push_back(at->second);
      at->second = me;
      if (c->op == &ops::kSend) sends.push_back(me);
      for (int s : sends) {
        const bool before = work[s].side == work[i].side || work[i].tag.phase == Phase::kUpdate;
        if (c->op == &ops::kRecv && before) mine.push_back(s);
      }
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    std::erase(mine, me);
  }
  return after;
}

void TapeWriter::write(const SegmentWork& segment) const {
  const std::vector<Instruction>& work = segment.work;
  const int n = static_cast<int>(work.size());
  const std::vector<std::vector<int>> after = dependencies(work);
  std::vector<Task> tasks(n);
  std::vector<double> seconds(n);
  double longest = 0;  // transfer
  std::vector<int> slots;
  for (int i = 0; i < n; ++i) {
    seconds[i] = predicted_seconds(plan_, work[i], links_);
    const auto* c = std::get_if<Collective>(&work[i].what);
    Task& task = tasks[i];
    task.seconds = seconds[i];
    task.lane = lane_of(work[i]);
    task.after = after[i];
    task.at_once = c != nullptr && c->op == &ops::kSend;
    task.side = work[i].side;
    const bool update = work[i].tag.phase == Phase::kUpdate;
    if (task.lane != kComputeLane && !update) longest = std::max(longest, seconds[i]);
    for (int s : read_slots(work[i])) {
      const Slot& slot = plan_.slots[root_slot(plan_, s)];
      const bool held = slot.home == Home::kArena || slot.home == Home::kRagged;
      if (held) tasks[i].pinned += slot.bytes;
    }
  }
  // Gradients are summed as soon as they stand; all else comes no earlier than hiding it needs.
  for (int i = 0; i < n; ++i) {
    if (work[i].tag.phase == Phase::kUpdate) continue;
    tasks[i].early = 2 * (tasks[i].lane == kComputeLane ? longest : seconds[i]);
  }
  Steps steps;
  steps.order = overlap_order(tasks, overlap_.store_bytes);
  for (int w : steps.order) steps.lane.push_back(tasks[w].lane);
  run_exposed_inline(steps, after);
  find_waits(steps, after);

  // Token rows: made where they are written first, freed once the last that touches them is done.
  using Rows = std::pair<int, int>;  // root slot, side
  std::map<Rows, int> last_touch;
  std::vector<std::vector<Rows>> made(n), freed(n);
  std::set<Rows> seen;
  for (int k = 0; k < n; ++k) {
    const Instruction& instruction = work[steps.order[k]];
    for (int s : written_slots(instruction)) {
      const Slot& slot = plan_.slots[s];
      if (slot.home != Home::kRagged || slot.alias >= 0) continue;
      if (seen.insert({s, instruction.side}).second) made[k].push_back({s, instruction.side});
    }
    touched_slots(plan_, instruction, slots);
    for (int s : slots) {
      if (plan_.slots[s].home != Home::kRagged) continue;
      int& last = last_touch.try_emplace({s, instruction.side}, 0).first->second;
      last = std::max(last, steps.done[k]);
    }
  }
  auto plays = [&](int index, int side) {
    if (segment.parts.empty()) return index == static_cast<int>(plan_.segments.size());
    const auto at = std::find(segment.parts.begin(), segment.parts.end(), index);
    return at != segment.parts.end() && (at == segment.parts.begin()) == (side == 0);
  };
  for (const auto& [rows, step] : last_touch) {
    if (plays(last_segment_.at(rows.first), rows.second)) freed[step].push_back(rows);
  }

  Segment out;
  out.name = segment.name;
  out.chunk = segment.chunk;
  out.parts = segment.parts;
  std::vector<int> place(n);
  for (int k = 0; k < n; ++k) {
    const Instruction& main = work[steps.order[k]];
    auto push_rows = [&](const Rows& rows, std::variant<Launch, Collective, Bind, Alloc, Free> what) {
      Instruction instruction;
      instruction.what = std::move(what);
      instruction.node = main.node;
      instruction.name = main.name;
      instruction.tag = main.tag;
      instruction.side = rows.second;
      instruction.done = static_cast<int>(out.instructions.size());
      out.instructions.push_back(std::move(instruction));
    };
    for (const Rows& rows : made[k]) push_rows(rows, Alloc{rows.first});
    place[k] = static_cast<int>(out.instructions.size());
    Instruction instruction = main;
    instruction.lane = steps.lane[k];
    instruction.seconds = seconds[steps.order[k]];
    for (int w : steps.waits[k]) instruction.waits.push_back(place[w]);
    instruction.done = steps.done[k];
    out.instructions.push_back(std::move(instruction));
    for (const Rows& rows : freed[k]) push_rows(rows, Free{rows.first});
  }
  for (int k = 0; k < n; ++k) {
    int& done = out.instructions[place[k]].done;
    done = place[done];
  }
  plan_.segments.push_back(std::move(out));
}

void TapeWriter::write_merged(const std::vector<int>& parts) const {
  SegmentWork merged;
  std::vector<std::string> names;
  for (int part : parts) names.push_back(segments_[part].name);
  merged.name = join(names, "|");
  merged.chunk = segments_[parts[0]].chunk;
  merged.parts = parts;
  std::map<int, int> copies;
  auto own = [&](int slot) {
    auto copied = [&](int s) {
      const auto [at, fresh] = copies.emplace(s, static_cast<int>(plan_.slots.size()));
      if (fresh) {
        plan_.slots.push_back(plan_.slots[s]);
        plan_.slots.back().name += cat(" of ", merged.name);
      }
      return at->second;
    };
    if (plan_.slots[root_slot(plan_, slot)].home != Home::kArena) return slot;
    const int first = copied(slot);
    for (int s = slot, copy = first; plan_.slots[s].alias >= 0;) {
      s = plan_.slots[s].alias;
      const int next = copied(s);
      plan_.slots[copy].alias = next;
      copy = next;
    }
    return first;
  };
  for (int part : parts) {
    for (Instruction instruction : segments_[part].work) {
      instruction.side = part == parts[0] ? 0 : 1;
      auto all = [&](std::vector<int>& slots) {
        for (int& s : slots) s = own(s);
      };
      if (auto* l = std::get_if<Launch>(&instruction.what)) {
        all(l->in);
        all(l->out);
      } else if (auto* c = std::get_if<Collective>(&instruction.what)) {
        all(c->in);
        all(c->out);
      } else if (auto* bind = std::get_if<Bind>(&instruction.what)) {
        all(bind->counts);
      }
      merged.work.push_back(std::move(instruction));
    }
  }
  write(merged);
}

}  // namespace moetrain
