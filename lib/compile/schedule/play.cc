// Playing timetables on paper: every dependency, every message, time and activations.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "compile/schedule/timetable.h"

namespace moetrain {

namespace {

class Player {
 public:
  Player(const Timetable& t, std::vector<PassTimes> times, bool forward_only)
      : t_(t), s_(t.stages), times_(std::move(times)), forward_only_(forward_only),
        forward_done_(s_.chunks(), std::vector<double>(t.micro_batches, -1)),
        backward_done_(forward_done_), weight_done_(forward_done_) {}

  Played run() {
    MT_CHECK(static_cast<int>(t_.of_stage.size()) == s_.count, "stages of the timetable");
    MT_CHECK(static_cast<int>(times_.size()) == s_.count, "durations of ", times_.size(), " stages");
    Played played;
    played.peak.assign(s_.count, 0);
    std::vector<size_t> next(s_.count, 0);
    std::vector<double> free(s_.count, 0), busy(s_.count, 0);
    std::vector<int> alive(s_.count, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < s_.count; ++stage) {
        while (next[stage] < t_.of_stage[stage].size()) {
          const Action& a = t_.of_stage[stage][next[stage]];
          const double ready = ready_at(stage, a);
          if (ready < 0) break;
          const double length = length_of(times_[stage], a);
          busy[stage] += length;
          free[stage] = std::max(free[stage], ready) + length;
          alive[stage] += starts(a) ? 1 : 0;
          played.peak[stage] = std::max(played.peak[stage], alive[stage]);
          alive[stage] -= ends(a) ? 1 : 0;
          finish(stage, a, free[stage]);
          ++next[stage];
          moved = true;
        }
      }
    }
    for (int stage = 0; stage < s_.count; ++stage) {
      MT_CHECK(next[stage] == t_.of_stage[stage].size(), "stage ", stage, " waits forever at action ",
               next[stage], " of\n", print(t_));
      played.time = std::max(played.time, free[stage]);
    }
    for (int stage = 0; stage < s_.count; ++stage) {
      played.idle = std::max(played.idle, played.time - busy[stage]);
    }
    played.busy = busy;
    check_complete();
    return played;
  }

 private:
  using Done = std::vector<std::vector<double>>;

  bool starts(const Action& a) const {
    return a.kind == Action::kForward || a.kind == Action::kBoth;
  }
  bool ends(const Action& a) const {
    return forward_only_ || a.kind == Action::kBackward || a.kind == Action::kWeightGradient ||
           a.kind == Action::kBoth;
  }
  static double length_of(const PassTimes& times, const Action& a) {
    switch (a.kind) {
      case Action::kForward: return times.forward;
      case Action::kBackward: return times.backward;
      case Action::kInputGradient: return times.backward - times.weight;
      case Action::kWeightGradient: return times.weight;
      case Action::kBoth: return times.both;
    }
    return 0;
  }

  /// When everything that the pass reads is there; negative: not yet.
  double forward_ready(int depth, int micro) const {
    return depth == 0 ? 0 : forward_done_[depth - 1][micro];
  }
  double backward_ready(int depth, int micro) const {
    const double own = forward_done_[depth][micro];
    if (own < 0 || depth + 1 == s_.chunks()) return own;
    const double later = backward_done_[depth + 1][micro];
    return later < 0 ? later : std::max(own, later);
  }
  double ready_at(int stage, const Action& a) const {
    const int depth = s_.chunk(stage, a.chunk);
    switch (a.kind) {
      case Action::kForward: return forward_ready(depth, a.micro);
      case Action::kBackward:
      case Action::kInputGradient: return backward_ready(depth, a.micro);
      case Action::kWeightGradient: return backward_done_[depth][a.micro];
      case Action::kBoth: break;
    }
    const double f = forward_ready(depth, a.micro);
    const double b = backward_ready(s_.chunk(stage, a.back_chunk), a.back_micro);
    return f < 0 || b < 0 ? -1 : std::max(f, b);
  }

  /// Micro-batches pass a chunk in order, so messages between two chunks are received as sent.
  void pass(Done& done, const char* what, int depth, int micro, double time) {
    MT_CHECK(done[depth][micro] < 0, what, " of chunk ", depth, ", micro-batch ", micro, " twice");
    MT_CHECK(micro == 0 || done[depth][micro - 1] >= 0, what, " of chunk ", depth,
             " overtakes at micro-batch ", micro);
    done[depth][micro] = time;
  }
  void finish(int stage, const Action& a, double time) {
    const int depth = s_.chunk(stage, a.chunk);
    if (starts(a)) pass(forward_done_, "forward", depth, a.micro, time);
    if (a.kind == Action::kBoth) {
      const int back = s_.chunk(stage, a.back_chunk);
      MT_CHECK(back != depth || a.back_micro < a.micro, "a pair of one micro-batch");
      pass(backward_done_, "backward", back, a.back_micro, time);
      pass(weight_done_, "weight gradient", back, a.back_micro, time);
    }
    if (a.kind == Action::kBackward || a.kind == Action::kInputGradient) {
      pass(backward_done_, "backward", depth, a.micro, time);
    }
    if (a.kind == Action::kBackward || a.kind == Action::kWeightGradient) {
      pass(weight_done_, "weight gradient", depth, a.micro, time);
    }
  }
  void check_complete() const {
    for (int depth = 0; depth < s_.chunks(); ++depth) {
      for (int m = 0; m < t_.micro_batches; ++m) {
        MT_CHECK(forward_done_[depth][m] >= 0, "no forward of chunk ", depth, ", micro-batch ", m);
        MT_CHECK(forward_only_ || (backward_done_[depth][m] >= 0 && weight_done_[depth][m] >= 0),
                 "no backward of chunk ", depth, ", micro-batch ", m);
      }
    }
  }

  const Timetable& t_;
  const Stages& s_;
  const std::vector<PassTimes> times_;
  const bool forward_only_;
  Done forward_done_, backward_done_, weight_done_;
};

}  // namespace

Played play(const Timetable& timetable, const PassTimes& times, bool forward_only) {
  return play_stages(timetable, std::vector<PassTimes>(timetable.stages.count, times), forward_only);
}

Played play_stages(const Timetable& timetable, std::vector<PassTimes> of_stage, bool forward_only) {
  return Player(timetable, std::move(of_stage), forward_only).run();
}

}  // namespace moetrain
