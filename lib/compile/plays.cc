// From actions to segments and frames.
#include "compile/plays.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace moetrain {

namespace {

/// Segments by name, -1 for none.
class Names {
 public:
  explicit Names(const Plan& plan) {
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      index_[plan.segments[i].name] = static_cast<int>(i);
    }
  }
  int operator()(const std::string& name) const {
    const auto at = index_.find(name);
    return at == index_.end() ? -1 : at->second;
  }

 private:
  std::map<std::string, int> index_;
};

/// Parts of one action by name; the first is side 0 of a pair.
std::vector<std::string> parts_of(const Action& a, bool whole, bool splits_weights) {
  std::vector<std::string> parts;
  if (whole) return {"step"};
  const bool both = a.kind == Action::kBoth;
  if (both || a.kind == Action::kForward) parts.push_back(cat("F.", a.chunk));
  if (a.kind == Action::kForward) return parts;
  const int chunk = both ? a.back_chunk : a.chunk;
  if (a.kind != Action::kWeightGradient) parts.push_back(cat("B.", chunk));
  if (a.kind != Action::kInputGradient && splits_weights) parts.push_back(cat("W.", chunk));
  return parts;
}

/// Calls use(group, micro, frames) for the frame groups a play touches, side after side.
template <class Plays, class Use>
void for_frames(const Plan& plan, Plays& play, Use use) {
  const Segment& segment = plan.segments[play.segment];
  if (segment.parts.empty()) {
    for (int group : segment.frames) use(group, play.micro, play.frames);
    return;
  }
  for (size_t i = 0; i < segment.parts.size(); ++i) {
    for (int group : plan.segments[segment.parts[i]].frames) {
      use(group, i == 0 ? play.micro : play.back_micro, i == 0 ? play.frames : play.back_frames);
    }
  }
}

}  // namespace

std::vector<std::vector<std::string>> merged_segments(const std::vector<Action>& actions, bool whole,
                                                      bool splits_weights) {
  std::vector<std::vector<std::string>> merged;
  auto add = [&](std::vector<std::string> parts) {
    if (std::find(merged.begin(), merged.end(), parts) == merged.end()) merged.push_back(std::move(parts));
  };
  for (const Action& a : actions) {
    if (a.kind == Action::kBoth) add(parts_of(a, whole, splits_weights));
  }
  if (!actions.empty()) add({parts_of(actions.back(), whole, splits_weights).back(), "update"});
  return merged;
}

std::vector<Play> plays_of(const Plan& plan, const std::vector<Action>& actions) {
  const Names named(plan);
  const std::vector<int> none(plan.frames.size(), 0);
  std::vector<Play> plays;
  auto run = [&](const std::string& name, int micro, bool feeds, int back_micro) {
    const int segment = named(name);
    if (segment >= 0) plays.push_back({segment, micro, feeds, none, back_micro, none});
    return segment >= 0;
  };
  const bool whole = named("step") >= 0;
  for (const Action& a : actions) {
    const bool both = a.kind == Action::kBoth;
    const bool feeds = both || a.kind == Action::kForward;
    std::vector<std::string> parts;
    for (const std::string& part : parts_of(a, whole, true)) {
      if (named(part) >= 0) parts.push_back(part);
    }
    if (both && run(join(parts, "|"), a.micro, true, a.back_micro)) continue;
    for (const std::string& part : parts) {
      run(part, both && part[0] != 'F' ? a.back_micro : a.micro, feeds && (whole || part[0] == 'F'), -1);
    }
  }
  if (!plays.empty()) {
    Play& last = plays.back();
    const int end = named(plan.segments[last.segment].name + "|update");
    if (end >= 0) last.segment = end;
    last.updates = end >= 0;
  }

  // Who touches a frame last.
  std::map<std::pair<int, int>, size_t> last;  // group, micro-batch -> play
  for (size_t i = 0; i < plays.size(); ++i) {
    for_frames(plan, plays[i], [&](int group, int micro, std::vector<int>&) { last[{group, micro}] = i; });
  }
  std::map<std::pair<int, int>, int> open;
  std::vector<std::set<int>> free(plan.frames.size());
  std::vector<int> made(plan.frames.size(), 0);
  for (size_t i = 0; i < plays.size(); ++i) {
    Play& play = plays[i];
    const Segment& segment = plan.segments[play.segment];
    for_frames(plan, play, [&](int group, int micro, std::vector<int>& frames) {
      const std::pair<int, int> key{group, micro};
      auto at = open.find(key);
      if (at == open.end()) {
        MT_CHECK(play.feeds && segment.chunk == group && micro == play.micro, "segment ",
                 segment.name, " of micro-batch ", micro, " comes before the forward pass of chunk ",
                 group);
        if (free[group].empty()) free[group].insert(made[group]++);
        at = open.emplace(key, *free[group].begin()).first;
        free[group].erase(free[group].begin());
      }
      frames[group] = at->second;
    });
    for (auto at = open.begin(); at != open.end();) {
      const auto& [key, frame] = *at;
      if (last.at(key) != i) {
        ++at;
        continue;
      }
      free[key.first].insert(frame);
      at = open.erase(at);
    }
  }
  return plays;
}

std::vector<int> frames_needed(const Plan& plan, const std::vector<Play>& plays) {
  std::vector<int> counts(plan.frames.size(), 0);
  for (const Play& play : plays) {
    for_frames(plan, play, [&](int group, int, const std::vector<int>& frames) {
      counts[group] = std::max(counts[group], frames[group] + 1);
    });
  }
  return counts;
}

}  // namespace moetrain
