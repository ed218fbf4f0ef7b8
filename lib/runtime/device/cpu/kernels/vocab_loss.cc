// The output head's loss on one rank, and its two halves when the vocabulary is spread over ranks.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/vocab_pass.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

bool with_gradient(const Attrs& attrs) { return attrs.integer_or("gradient", 0) != 0; }

bool accepts_statistics(const Attrs&, Types in, Types) {
  return is_f32_or_bf16(in[0]) && in[0].dtype == in[1].dtype && in[2].dtype == DType::kI32 &&
         in[1].shape[0] > 0;
}

bool accepts_loss(const Attrs& attrs, Types in, Types out) {
  return accepts_statistics(attrs, in, out) && in[3].dtype == DType::kF32 &&
         in[4].dtype == DType::kF32 && (in.size() < 6 || in[5].dtype == DType::kF32);
}

size_t workspace(const Attrs& attrs, Types in, Types out, int threads) {
  return vocab_pass_workspace(in[1].shape[0], in[1].shape[1],
                              with_gradient(attrs) && out.size() > 2, threads);
}

VocabPass pass_of(const LaunchArgs& args) {
  VocabPass pass{};
  pass.tokens = args.in[2].numel();
  pass.vocab = args.in[1].shape[0];
  pass.width = args.in[1].shape[1];
  pass.dtype = args.in[0].dtype;
  pass.x = args.in[0].data;
  pass.w = args.in[1].data;
  pass.labels = args.in[2].as<const int32_t>();
  pass.vocab_begin = args.attrs.integer_or("vocab_begin", 0);
  return pass;
}

void run(const LaunchArgs& args, const VocabPass& pass) {
  run_vocab_pass(pass, args.workspace, args.workspace_bytes, args.pool);
}

/// What the loss adds up, token by token.
struct LossState {
  const float* valid;
  double scale, total;
  int64_t tokens, vocab;
  const int32_t* labels;
  const float* statistics;  ///< [m, 3, t] of all ranks, or null
  int64_t members;
};

double settle_loss(void* context, int64_t t, float maximum, double sum, float label_logit,
                   float* coefficient) {
  LossState& s = *static_cast<LossState*>(context);
  const double valid = s.valid[t];
  double top = maximum, target = label_logit;
  if (s.statistics) {
    top = -INFINITY, sum = 0, target = 0;
    auto at = [&](int64_t m, int64_t k) { return s.statistics[(m * 3 + k) * s.tokens + t]; };
    for (int64_t m = 0; m < s.members; ++m) top = std::max<double>(top, at(m, 0));
    for (int64_t m = 0; m < s.members; ++m) {
      sum += at(m, 1) * std::exp(at(m, 0) - top);
      target += at(m, 2);
    }
  } else if (valid != 0) {
    MT_CHECK(s.labels[t] >= 0 && s.labels[t] < s.vocab, "label ", s.labels[t], " of token ", t,
             " outside the vocabulary of ", s.vocab);
  }
  const double lse = top + std::log(sum);
  if (valid != 0) s.total += valid * (lse - target);
  *coefficient = static_cast<float>(s.scale * valid);
  return lse;
}

void run_loss(const LaunchArgs& args) {
  VocabPass pass = pass_of(args);
  LossState state{args.in[3].as<const float>(),
                  *args.in[4].as<const float>(),
                  0,
                  pass.tokens,
                  pass.vocab,
                  pass.labels,
                  nullptr,
                  0};
  if (args.in.size() == 6) {
    state.statistics = args.in[5].as<const float>();
    state.members = args.in[5].shape[0];
  }
  pass.settle = &settle_loss;
  pass.context = &state;
  if (with_gradient(args.attrs)) {
    pass.dx = args.out[2].data;
    pass.dw = args.out[3].as<float>();
  }
  if (state.statistics && !pass.dx) {
    // The statistics say it all: no logits are needed.
    float unused = 0;
    for (int64_t t = 0; t < pass.tokens; ++t) settle_loss(&state, t, 0, 0, 0, &unused);
  } else {
    run(args, pass);
  }
  *args.out[0].as<float>() = static_cast<float>(state.scale * state.total);
  *args.out[1].as<float>() = static_cast<float>(state.total);
}

/// Where the statistics of this rank's columns go: [3, t].
struct StatisticsState {
  float* out;
  int64_t tokens;
};

double settle_statistics(void* context, int64_t t, float maximum, double sum, float label_logit,
                         float* coefficient) {
  const StatisticsState& s = *static_cast<StatisticsState*>(context);
  s.out[t] = maximum;
  s.out[s.tokens + t] = static_cast<float>(sum);
  s.out[2 * s.tokens + t] = label_logit;
  *coefficient = 0;
  return 0;
}

void run_statistics(const LaunchArgs& args) {
  VocabPass pass = pass_of(args);
  StatisticsState state{args.out[0].as<float>(), pass.tokens};
  pass.settle = &settle_statistics;
  pass.context = &state;
  run(args, pass);
}

constexpr Kernel kRows[] = {
    {"vocab_loss", "vocab_loss.chunks", &accepts_loss, &workspace, &run_loss},
    {"vocab_statistics", "vocab_statistics.chunks", &accepts_statistics, &workspace,
     &run_statistics},
    {"vocab_loss_finish", "vocab_loss_finish.chunks", &accepts_loss, &workspace, &run_loss},
};

}  // namespace

std::span<const Kernel> vocab_loss_kernels() { return kRows; }

}  // namespace moetrain::cpu
