// List scheduling over one compute lane and the lanes of transfers.
#include "compile/overlap.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace moetrain {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kGain = 1e-3;  // what another order must save to be taken

/// How an order is made. Which values serve best depends on the segment: several are tried.
struct Caution {
  double slack;   ///< how much longer than predicted a transfer may take, as a share of its length
  double filler;  ///< how many times as long as the gap before it a filler may be
};
constexpr Caution kCautions[] = {{0.5, 2},  {0.5, 1},  {0.5, 4}, {0.25, 2}, {0.25, 1},
                                 {0.25, 4}, {0, 2},    {0, 1},   {0, 4}};

class ListScheduler {
 public:
  ListScheduler(const std::vector<Task>& tasks, int64_t store_bytes, const Caution& caution)
      : tasks_(tasks), store_bytes_(store_bytes), caution_(caution), users_(tasks.size()), missing_(tasks.size()),
        way_(tasks.size(), 0), end_(tasks.size(), 0), filler_(tasks.size(), 1) {
    int lanes = 1;
    for (size_t i = 0; i < tasks.size(); ++i) {
      missing_[i] = static_cast<int>(tasks[i].after.size());
      lanes = std::max(lanes, tasks[i].lane + 1);
      for (int a : tasks[i].after) {
        MT_CHECK(a >= 0 && a < static_cast<int>(i), "task ", i, " after ", a);
        users_[a].push_back(static_cast<int>(i));
      }
    }
    free_.assign(lanes, 0);
    for (size_t i = tasks.size(); i-- > 0;) {
      if (tasks[i].lane != 0 || tasks[i].at_once) filler_[i] = 0;
      for (int u : users_[i]) {
        way_[i] = std::max(way_[i], way_[u]);
        if (!filler_[u]) filler_[i] = 0;
      }
      way_[i] += tasks[i].seconds;
    }
    int transfers = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].at_once) way_[i] = kNever;
      if (tasks[i].lane == 0) continue;
      usual_transfer_ += tasks[i].seconds;
      ++transfers;
    }
    if (transfers > 0) usual_transfer_ /= transfers;
    measure_sides();
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (missing_[i] == 0) make_ready(static_cast<int>(i));
    }
  }

  std::vector<int> run() {
    while (order_.size() < tasks_.size()) {
      queue_transfers();
      if (order_.size() == tasks_.size()) break;
      const int next = choose();
      if (next < 0) {  // what the sides wait for lies ahead on the other one
        patient_ = false;
        continue;
      }
      patient_ = true;
      free_[0] = std::max(free_[0], ready_at(next)) + tasks_[next].seconds;
      end_[next] = free_[0];
      issue(next);
    }
    return std::move(order_);
  }

 private:
  struct Urgency {
    double way;
    int task;
    bool operator<(const Urgency& o) const {
      return way != o.way ? way > o.way : task < o.task;
    }
  };

  /// Per side: the computations in their given order, and how many seconds of them lie before each task (a
  /// transfer: before its first user).
  void measure_sides() {
    double sums[2] = {0, 0};
    before_.resize(tasks_.size());
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const Task& t = tasks_[i];
      before_[i] = sums[t.side];
      if (t.lane != 0 || filler_[i]) continue;
      sums[t.side] += t.seconds;
      way_of_side_[t.side].push_back(static_cast<int>(i));
    }
    for (size_t i = tasks_.size(); i-- > 0;) {
      if (tasks_[i].lane == 0 || users_[i].empty()) continue;
      const int user = *std::min_element(users_[i].begin(), users_[i].end());
      if (tasks_[user].side == tasks_[i].side) before_[i] = before_[user];
    }
  }

  /// May it run now, or is it too far ahead?
  bool due(int task) const {
    const int side = tasks_[task].side;
    if (!patient_) return true;
    if (tasks_[task].early >= Task::kAnyTime || front_[side] == way_of_side_[side].size()) return true;
    return before_[task] - before_[way_of_side_[side][front_[side]]] <= tasks_[task].early;
  }

  double ready_at(int task) const {
    double ready = 0;
    for (int a : tasks_[task].after) ready = std::max(ready, end_[a]);
    return ready;
  }

  void make_ready(int task) {
    if (tasks_[task].lane != 0) {
      transfers_.insert({way_[task], task});
    } else if (filler_[task]) {
      fillers_.insert(task);
      stored_ += tasks_[task].pinned;
    } else {
      urgent_.insert({way_[task], task});
    }
  }

  void issue(int task) {
    if (tasks_[task].lane != 0) {
      transfers_.erase({way_[task], task});
    } else if (filler_[task]) {
      fillers_.erase(task);
      stored_ -= tasks_[task].pinned;
    } else {
      urgent_.erase({way_[task], task});
    }
    order_.push_back(task);
    issued_[task] = 1;
    for (int side = 0; side < 2; ++side) {
      const std::vector<int>& way = way_of_side_[side];
      while (front_[side] < way.size() && issued_[way[front_[side]]]) ++front_[side];
    }
    for (int u : users_[task]) {
      if (--missing_[u] == 0) make_ready(u);
    }
  }

  void queue_transfers() {
    for (;;) {
      const auto next = std::find_if(transfers_.begin(), transfers_.end(),
                                     [&](const Urgency& u) { return due(u.task); });
      if (next == transfers_.end()) return;
      const int task = next->task;
      double& free = free_[tasks_[task].lane];
      free = end_[task] = std::max({free, free_[0], ready_at(task)}) + tasks_[task].seconds;
      issue(task);
    }
  }

  /// The filler that fits a gap best, among those that could start now; -1: none.
  int filler_for(double gap) const {
    int best = -1;
    for (int f : fillers_) {
      if (ready_at(f) > free_[0]) continue;
      if (gap == kNever) return f;
      const double length = tasks_[f].seconds;
      if (best < 0) {
        best = f;
        continue;
      }
      const double other = tasks_[best].seconds;
      const bool fits = length <= gap, other_fits = other <= gap;
      if (fits != other_fits ? fits : fits ? length > other : length < other) best = f;
    }
    return best;
  }

  /// When a task may start even if transfers take longer, by the slack of their own length or of the usual
  /// one: links are shared and other ranks late. What waits for nothing new goes first, where there is a
  /// choice.
  double surely_ready_at(int task) const {
    double ready = 0;
    for (int a : tasks_[task].after) {
      const bool transfer = tasks_[a].lane != 0;
      const double slack = transfer ? caution_.slack * std::max(tasks_[a].seconds, usual_transfer_) : 0;
      ready = std::max(ready, end_[a] + slack);
    }
    return ready;
  }

  int choose() {
    double soonest = kNever;
    int first = -1, sure = -1;
    for (const Urgency& u : urgent_) {
      if (!due(u.task)) continue;
      const double surely = surely_ready_at(u.task);
      if (surely <= free_[0]) {
        sure = u.task;
        break;
      }
      if (surely < soonest) {
        soonest = surely;
        first = u.task;
      }
    }
    if (stored_ > store_bytes_) {
      for (int f : fillers_) {
        if (ready_at(f) <= free_[0]) return f;
      }
    }
    if (sure >= 0) return sure;
    const double gap = soonest == kNever ? kNever : soonest - free_[0];
    const int filler = filler_for(gap);
    // One that would hold the way up for longer than it saves waits for a better place.
    if (filler >= 0 && (gap == kNever || tasks_[filler].seconds <= caution_.filler * gap)) return filler;
    if (first >= 0) return first;
    if (fillers_.empty()) {
      MT_CHECK(patient_, "tasks wait for one another in a circle");
      return -1;
    }
    return *std::min_element(fillers_.begin(), fillers_.end(), [&](int a, int b) {
      return ready_at(a) != ready_at(b) ? ready_at(a) < ready_at(b) : a < b;
    });
  }

  const std::vector<Task>& tasks_;
  const int64_t store_bytes_;
  const Caution caution_;
  double usual_transfer_ = 0;  ///< mean seconds
  std::vector<std::vector<int>> users_;
  std::vector<int> missing_;
  std::vector<double> way_;  ///< seconds to the end of the longest chain behind, itself included
  std::vector<double> end_;
  std::vector<char> filler_, issued_ = std::vector<char>(tasks_.size(), 0);
  std::vector<double> before_;       ///< seconds of computation before it, in the given order
  std::vector<int> way_of_side_[2];  ///< computations that are no fillers, in the given order
  size_t front_[2] = {0, 0};         ///< the first of them that was not issued
  std::vector<double> free_;  ///< per lane
  std::set<Urgency> transfers_, urgent_;
  std::set<int> fillers_;
  int64_t stored_ = 0;
  bool patient_ = true;  ///< keeps to `early`
  std::vector<int> order_;
};

/// When each task runs if it takes `seconds`.
Timing play(const std::vector<Task>& tasks, const std::vector<int>& order,
            const std::vector<double>& seconds) {
  Timing timing{std::vector<double>(tasks.size(), 0), std::vector<double>(tasks.size(), 0)};
  int lanes = 1;
  for (const Task& t : tasks) lanes = std::max(lanes, t.lane + 1);
  std::vector<double> free(lanes, 0);
  for (int i : order) {
    double ready = free[0];
    for (int a : tasks[i].after) ready = std::max(ready, timing.end[a]);
    if (tasks[i].lane == 0) timing.waited += ready - free[0];
    timing.begin[i] = std::max(ready, free[tasks[i].lane]);
    free[tasks[i].lane] = timing.end[i] = timing.begin[i] + seconds[i];
  }
  timing.length = *std::max_element(free.begin(), free.end());
  timing.waited += timing.length - free[0];
  return timing;
}

/// Durations as predicted, and as they may turn out: every transfer a quarter longer, or each between four
/// fifths and seven fifths of its length.
std::vector<std::vector<double>> possible_seconds(const std::vector<Task>& tasks) {
  constexpr int kUneven = 3;
  std::vector<std::vector<double>> cases(2 + kUneven, std::vector<double>(tasks.size()));
  for (size_t c = 0; c < cases.size(); ++c) {
    const CounterRandom random(c, "transfers");
    for (size_t i = 0; i < tasks.size(); ++i) {
      const double factor = c == 0 ? 1 : c == 1 ? 1.25 : 0.8 + 0.6 * random.uniform(i);
      cases[c][i] = tasks[i].seconds * (tasks[i].lane == 0 ? 1 : factor);
    }
  }
  return cases;
}

}  // namespace

std::vector<int> overlap_order(const std::vector<Task>& tasks, int64_t store_bytes) {
  if (std::all_of(tasks.begin(), tasks.end(), [](const Task& t) { return t.lane == 0; })) {
    std::vector<int> order(tasks.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const std::vector<std::vector<double>> cases = possible_seconds(tasks);
  std::vector<int> best;
  double least = kNever;
  for (const Caution& caution : kCautions) {
    std::vector<int> order = ListScheduler(tasks, store_bytes, caution).run();
    double length = 0;
    for (const std::vector<double>& seconds : cases) length += play(tasks, order, seconds).length;
    if (length >= least * (1 - kGain)) continue;
    least = length;
    best = std::move(order);
  }
  return best;
}

Timing time_order(const std::vector<Task>& tasks, const std::vector<int>& order) {
  std::vector<double> seconds;
  for (const Task& t : tasks) seconds.push_back(t.seconds);
  return play(tasks, order, seconds);
}

}  // namespace moetrain
