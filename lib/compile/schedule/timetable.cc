// Building timetables.
#include "compile/schedule/timetable.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace moetrain {

namespace {

struct Pass {
  int chunk, micro;
};

/// The order in which a stage passes its chunks: blocks of `count` micro-batches through one chunk after
/// the other, chunks in depth order forward and in reverse backward.
std::vector<Pass> interleaved_order(const Stages& s, int micro_batches, bool backward) {
  std::vector<Pass> order;
  for (int first = 0; first < micro_batches; first += s.count) {
    const int last = std::min(first + s.count, micro_batches);
    for (int c = 0; c < s.per_stage; ++c) {
      for (int m = first; m < last; ++m) {
        order.push_back({backward ? s.per_stage - 1 - c : c, m});
      }
    }
  }
  return order;
}

Action forward(Pass f) { return {Action::kForward, f.chunk, f.micro}; }
Action backward(Pass b) { return {Action::kBackward, b.chunk, b.micro}; }
Action both(Pass f, Pass b) { return {Action::kBoth, f.chunk, f.micro, b.chunk, b.micro}; }

int warm_up(const Stages& s, int stage, bool fused) {
  const int after = s.count - stage - 1;  // stages behind this one
  if (s.per_stage == 1) return fused ? 2 * after + 1 : after;
  return 2 * after + (s.per_stage - 1) * s.count + (fused ? 1 : 0);
}

/// Writes one stage of DualPipeV: a forward and a backward counter per chunk, and a queue of weight
/// gradients that wait.
class FoldedStage {
 public:
  explicit FoldedStage(std::vector<Action>& out) : out_(out) {}

  void f(int chunk) { out_.push_back(forward({chunk, forwards_[chunk]++})); }
  void b(int chunk) { out_.push_back(backward({chunk, backwards_[chunk]++})); }
  void x(int chunk) {
    const Pass pass{chunk, backwards_[chunk]++};
    out_.push_back({Action::kInputGradient, pass.chunk, pass.micro});
    waiting_.push_back(pass);
  }
  void w() {
    MT_CHECK(!waiting_.empty(), "no weight gradient waits");
    out_.push_back({Action::kWeightGradient, waiting_.front().chunk, waiting_.front().micro});
    waiting_.pop_front();
  }
  void fb(int f_chunk, int b_chunk) {
    out_.push_back(both({f_chunk, forwards_[f_chunk]++}, {b_chunk, backwards_[b_chunk]++}));
  }

 private:
  std::vector<Action>& out_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::deque<Pass> waiting_;
};

}  // namespace

Timetable one_forward_one_backward(const Stages& stages, int micro_batches, bool fused) {
  MT_CHECK(!stages.folded && micro_batches > 0, "1F1B of ", micro_batches, " micro-batches");
  MT_CHECK(stages.per_stage == 1 || micro_batches % stages.count == 0, "interleaving ",
           micro_batches, " micro-batches over ", stages.count, " stages");
  Timetable t{stages, micro_batches, {}, false};
  const std::vector<Pass> forwards = interleaved_order(stages, micro_batches, false);
  const std::vector<Pass> backwards = interleaved_order(stages, micro_batches, true);
  const int total = static_cast<int>(forwards.size());
  for (int stage = 0; stage < stages.count; ++stage) {
    std::vector<Action>& out = t.of_stage.emplace_back();
    const int warm = std::min(warm_up(stages, stage, fused), total);
    for (int i = 0; i < warm; ++i) out.push_back(forward(forwards[i]));
    for (int i = warm; i < total; ++i) {
      if (fused) {
        out.push_back(both(forwards[i], backwards[i - warm]));
      } else {
        out.push_back(forward(forwards[i]));
        out.push_back(backward(backwards[i - warm]));
      }
    }
    for (int i = total - warm; i < total; ++i) out.push_back(backward(backwards[i]));
  }
  return t;
}

// The eight steps of the published schedule (github.com/deepseek-ai/DualPipe, dualpipev.py).
Timetable dual_pipe_v(int stages, int micro_batches) {
  MT_CHECK(micro_batches >= 2 * stages, "DualPipeV of ", micro_batches, " micro-batches on ",
           stages, " stages");
  Timetable t{{stages, 2, true}, micro_batches, {}, true};
  for (int stage = 0; stage < stages; ++stage) {
    FoldedStage s(t.of_stage.emplace_back());
    const int after = stages - stage - 1, upto = stage + 1;
    for (int i = 0; i < 2 * after; ++i) s.f(0);
    for (int i = 0; i < upto; ++i) s.f(0), s.f(1);
    for (int i = 0; i < after; ++i) s.x(1), s.w(), s.f(1);
    for (int i = 0; i < micro_batches - 2 * stages + upto; ++i) {
      if (i == 0 && after == 0) {
        s.f(0), s.b(1);  // the turning point: the pair would wait for itself
      } else {
        s.fb(0, 1);
      }
      s.fb(1, 0);
    }
    for (int i = 0; i < after; ++i) s.b(1), s.fb(1, 0);
    for (int i = 0; i < 2 * upto; ++i) {
      const int chunk = i % 2 == 0 ? 1 : 0;
      if (i < upto) {
        s.b(chunk);
      } else {
        s.x(chunk);
      }
    }
    for (int i = 0; i < after; ++i) s.w(), s.x(0);
    for (int i = 0; i < upto; ++i) s.w();
  }
  return t;
}

Timetable forward_only(const Stages& stages, int micro_batches) {
  Timetable t{stages, micro_batches, {}, false};
  for (int stage = 0; stage < stages.count; ++stage) {
    std::vector<Action>& out = t.of_stage.emplace_back();
    std::vector<Pass> order;
    for (int c = 0; c < stages.per_stage; ++c) {
      for (int m = 0; m < micro_batches; ++m) order.push_back({c, m});
    }
    // Depth plus micro-batch grows along every dependency, so this order cannot lock up.
    std::stable_sort(order.begin(), order.end(), [&](Pass a, Pass b) {
      return a.micro + stages.chunk(stage, a.chunk) < b.micro + stages.chunk(stage, b.chunk);
    });
    for (Pass p : order) out.push_back(forward(p));
  }
  return t;
}

Timetable make_timetable(PipelineOrder order, const Stages& stages, int micro_batches) {
  const bool whole = stages.count == 1 && order != PipelineOrder::kFused1F1B;
  if (whole || order == PipelineOrder::kForwardOnly) {
    return forward_only(stages, micro_batches);
  }
  if (order == PipelineOrder::kDualPipeV) return dual_pipe_v(stages.count, micro_batches);
  return one_forward_one_backward(stages, micro_batches, order == PipelineOrder::kFused1F1B);
}

std::string print(const Timetable& timetable) {
  std::string text;
  for (const auto& actions : timetable.of_stage) {
    std::vector<std::string> words;
    for (const Action& a : actions) {
      const char* letter = a.kind == Action::kBackward         ? "B"
                           : a.kind == Action::kInputGradient  ? "X"
                           : a.kind == Action::kWeightGradient ? "W"
                                                               : "F";
      words.push_back(cat(letter, a.chunk, ".", a.micro));
      if (a.kind == Action::kBoth) words.back() += cat("|B", a.back_chunk, ".", a.back_micro);
    }
    text += join(words, " ") + "\n";
  }
  return text;
}

}  // namespace moetrain
