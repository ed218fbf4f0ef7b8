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

}  // namespace

std::vector<Play> plays_of(const Plan& plan, const std::vector<Action>& actions) {
  const Names named(plan);
  std::vector<Play> plays;
  auto run = [&](const std::string& name, int micro, bool feeds = false) {
    const int segment = named(name);
    if (segment < 0) return;
    plays.push_back({segment, micro, feeds, std::vector<int>(plan.frames.size(), 0)});
  };
  const bool whole = named("step") >= 0;
  for (const Action& a : actions) {
    const bool forward = a.kind == Action::kForward || a.kind == Action::kBoth;
    if (forward) run(whole ? "step" : cat("F.", a.chunk), a.micro, true);
    const int chunk = a.kind == Action::kBoth ? a.back_chunk : a.chunk;
    const int micro = a.kind == Action::kBoth ? a.back_micro : a.micro;
    if (a.kind != Action::kForward && a.kind != Action::kWeightGradient) {
      run(cat("B.", chunk), micro);
    }
    if (a.kind != Action::kForward && a.kind != Action::kInputGradient) {
      run(cat("W.", chunk), micro);
    }
  }

  // Who touches a frame last.
  std::map<std::pair<int, int>, size_t> last;  // group, micro-batch -> play
  for (size_t i = 0; i < plays.size(); ++i) {
    for (int group : plan.segments[plays[i].segment].frames) last[{group, plays[i].micro}] = i;
  }
  std::map<std::pair<int, int>, int> open;
  std::vector<std::set<int>> free(plan.frames.size());
  std::vector<int> made(plan.frames.size(), 0);
  for (size_t i = 0; i < plays.size(); ++i) {
    Play& play = plays[i];
    const Segment& segment = plan.segments[play.segment];
    for (int group : segment.frames) {
      const std::pair<int, int> key{group, play.micro};
      auto at = open.find(key);
      if (at == open.end()) {
        MT_CHECK(play.feeds && segment.chunk == group, "segment ", segment.name, " of micro-batch ",
                 play.micro, " comes before the forward pass of chunk ", group);
        if (free[group].empty()) free[group].insert(made[group]++);
        at = open.emplace(key, *free[group].begin()).first;
        free[group].erase(free[group].begin());
      }
      play.frames[group] = at->second;
      if (last.at(key) == i) {
        free[group].insert(at->second);
        open.erase(at);
      }
    }
  }
  return plays;
}

std::vector<int> frames_needed(const Plan& plan, const std::vector<Play>& plays) {
  std::vector<int> counts(plan.frames.size(), 0);
  for (const Play& play : plays) {
    for (int group : plan.segments[play.segment].frames) {
      counts[group] = std::max(counts[group], play.frames[group] + 1);
    }
  }
  return counts;
}

}  // namespace moetrain
