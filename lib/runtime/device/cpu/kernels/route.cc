// The sigmoid router: scores by vector, choices by insertion, statistics in fixed blocks of tokens.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/route.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// s[e] = sigmoid(logits[e]).
void route_scores(const float* logits, float* s, int64_t n) {
  for (int64_t e = 0; e < n; e += lanes())
    store(sigmoid(load(logits + e, n - e)).value, s + e, n - e);
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(route_scores);

namespace {

using Types = std::span<const Type>;

/// Tokens whose statistics are summed in one piece: fixed, so that threads do not change a bit.
constexpr int64_t kBlockTokens = 64;

struct Options {
  int64_t experts, top_k, groups, top_groups, valid_positions;
  bool normalise;
  double scaling;
};

Options options_of(const Attrs& attrs, int64_t experts) {
  return {experts,
          attrs.integer("top_k"),
          attrs.integer("groups"),
          attrs.integer("top_groups"),
          attrs.integer("valid_positions"),
          attrs.integer("normalise") != 0,
          attrs.real("scaling")};
}

bool routed(const Options& o, int32_t position) {
  return o.valid_positions <= 0 || position < o.valid_positions;
}

/// The indices of the `count` largest values offered, largest first; the first offered wins a tie.
class Largest {
 public:
  Largest(float* values, int32_t* indices, int64_t count)
      : values_(values), indices_(indices), count_(count) {}
  void offer(float value, int64_t index) {
    if (size_ == count_) {
      if (!(value > values_[count_ - 1])) return;
    } else {
      ++size_;
    }
    int64_t at = size_ - 1;
    for (; at > 0 && value > values_[at - 1]; --at) {
      values_[at] = values_[at - 1];
      indices_[at] = indices_[at - 1];
    }
    values_[at] = value;
    indices_[at] = static_cast<int32_t>(index);
  }

 private:
  float* values_;
  int32_t* indices_;
  int64_t count_, size_ = 0;
};

/// Floats of scratch one worker needs: scores, biased scores, and the lists of Largest.
struct Scratch {
  float *s, *biased, *values, *group_scores;
  int32_t *chosen, *raw, *kept;
  static size_t bytes(const Options& o) {
    return 4 * round_up_64(o.experts * sizeof(float)) + 3 * round_up_64(o.experts * sizeof(float));
  }
  Scratch(std::byte* at, const Options& o) {
    const size_t step = round_up_64(o.experts * sizeof(float));
    auto next = [&] {
      std::byte* piece = at;
      at += step;
      return piece;
    };
    s = reinterpret_cast<float*>(next()), biased = reinterpret_cast<float*>(next());
    values = reinterpret_cast<float*>(next()), group_scores = reinterpret_cast<float*>(next());
    chosen = reinterpret_cast<int32_t*>(next()), raw = reinterpret_cast<int32_t*>(next());
    kept = reinterpret_cast<int32_t*>(next());
  }
};

/// Sum of the two largest of z[0, n).
float best_two(const float* z, int64_t n) {
  if (n == 1) return z[0];
  float first = -INFINITY, second = -INFINITY;
  for (int64_t e = 0; e < n; ++e) {
    if (z[e] > first) {
      second = first;
      first = z[e];
    } else if (z[e] > second) {
      second = z[e];
    }
  }
  return first + second;
}

/// Fills scratch.chosen with the token's experts, ascending.
void choose(const Options& o, const Scratch& w) {
  Largest best(w.values, w.chosen, o.top_k);
  if (o.groups == 1) {
    for (int64_t e = 0; e < o.experts; ++e) best.offer(w.biased[e], e);
  } else {
    const int64_t size = o.experts / o.groups;
    Largest groups(w.group_scores, w.kept, o.top_groups);
    for (int64_t g = 0; g < o.groups; ++g) groups.offer(best_two(w.biased + g * size, size), g);
    std::sort(w.kept, w.kept + o.top_groups);
    for (int64_t k = 0; k < o.top_groups; ++k) {
      for (int64_t e = w.kept[k] * size; e < (w.kept[k] + 1) * size; ++e)
        best.offer(w.biased[e], e);
    }
  }
  std::sort(w.chosen, w.chosen + o.top_k);
}

/// What one block of tokens adds to the statistics.
struct Partial {
  double* mean;    ///< [E]
  int32_t* plain;  ///< [E]
  int32_t* load;   ///< [E]
};

void route_block(const Options& o, const LaunchArgs& args, const Scratch& w, const Partial& p,
                 int64_t begin, int64_t end) {
  const float *logits = args.in[0].as<const float>(), *bias = args.in[1].as<const float>();
  const int32_t* pos = args.in[2].as<const int32_t>();
  std::fill(p.mean, p.mean + o.experts, 0.0);
  std::fill(p.plain, p.plain + o.experts, 0);
  std::fill(p.load, p.load + o.experts, 0);
  for (int64_t t = begin; t < end; ++t) {
    int32_t* idx = args.out[0].as<int32_t>() + t * o.top_k;
    float* weight = args.out[1].as<float>() + t * o.top_k;
    if (!routed(o, pos[t])) {
      std::fill(idx, idx + o.top_k, -1);
      std::fill(weight, weight + o.top_k, 0.0f);
      continue;
    }
    HWY_DYNAMIC_DISPATCH(route_scores)(logits + t * o.experts, w.s, o.experts);
    for (int64_t e = 0; e < o.experts; ++e) w.biased[e] = w.s[e] + bias[e];
    choose(o, w);
    double kept = 0, all = 0;
    for (int64_t k = 0; k < o.top_k; ++k) kept += w.s[w.chosen[k]];
    const double factor = o.normalise ? o.scaling / (kept + 1e-20) : o.scaling;
    for (int64_t k = 0; k < o.top_k; ++k) {
      idx[k] = w.chosen[k];
      weight[k] = static_cast<float>(factor * w.s[w.chosen[k]]);
      ++p.load[w.chosen[k]];
    }
    Largest raw(w.values, w.raw, o.top_k);
    for (int64_t e = 0; e < o.experts; ++e) {
      raw.offer(w.s[e], e);
      all += w.s[e];
    }
    for (int64_t k = 0; k < o.top_k; ++k) ++p.plain[w.raw[k]];
    const double inverse = 1.0 / all;
    for (int64_t e = 0; e < o.experts; ++e) p.mean[e] += w.s[e] * inverse;
  }
}

bool accepts_route(const Attrs&, Types in, Types out) {
  return in[0].dtype == DType::kF32 && in[1].dtype == DType::kF32 && out[0].dtype == DType::kI32;
}

bool accepts_grad(const Attrs&, Types in, Types) {
  return in[0].dtype == DType::kF32 && in[1].dtype == DType::kF32 &&
         (in.size() < 5 || in[4].dtype == DType::kF32);
}

int64_t blocks_of(const Shape& logits) { return logits[0] * ceil_div(logits[1], kBlockTokens); }

size_t partial_bytes(int64_t experts) {
  return round_up_64(experts * (sizeof(double) + 2 * sizeof(int32_t)));
}

size_t route_workspace(const Attrs& attrs, Types in, Types, int threads) {
  const Options o = options_of(attrs, in[0].shape[2]);
  return kCarverSlack + threads * Scratch::bytes(o) +
         blocks_of(in[0].shape) * partial_bytes(o.experts);
}

Partial partial_at(std::byte* base, int64_t block, int64_t experts) {
  std::byte* at = base + block * static_cast<int64_t>(partial_bytes(experts));
  double* mean = reinterpret_cast<double*>(at);
  int32_t* plain = reinterpret_cast<int32_t*>(mean + experts);
  return {mean, plain, plain + experts};
}

void run_route(const LaunchArgs& args) {
  const int64_t batch = args.in[0].shape[0], length = args.in[0].shape[1];
  const Options o = options_of(args.attrs, args.in[0].shape[2]);
  const int64_t per_row = ceil_div(length, kBlockTokens);
  Carver carver(args);
  std::byte* scratch = carver.take<std::byte>(args.pool.size() * Scratch::bytes(o));
  std::byte* partials = carver.take<std::byte>(batch * per_row * partial_bytes(o.experts));
  args.pool.run(batch * per_row, [&](int64_t block, int worker) {
    const int64_t begin = block % per_row * kBlockTokens, row = block / per_row * length;
    route_block(o, args, Scratch(scratch + worker * Scratch::bytes(o), o),
                partial_at(partials, block, o.experts), row + begin,
                row + std::min(length, begin + kBlockTokens));
  });
  int64_t* load = args.out[2].as<int64_t>();
  std::fill(load, load + o.experts, 0);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t e = 0; e < o.experts; ++e) {
      double mean = 0;
      int64_t plain = 0;
      for (int64_t i = b * per_row; i < (b + 1) * per_row; ++i) {
        const Partial p = partial_at(partials, i, o.experts);
        mean += p.mean[e];
        plain += p.plain[e];
        load[e] += p.load[e];
      }
      args.out[3].as<float>()[b * o.experts + e] = static_cast<float>(plain);
      args.out[4].as<float>()[b * o.experts + e] = static_cast<float>(mean);
    }
  }
}

size_t grad_workspace(const Attrs&, Types in, Types, int threads) {
  return kCarverSlack + threads * 2 * round_up_64(in[1].shape[2] * sizeof(float));
}

/// dlogits of one token; weight_k = scaling s_k / (sum + tiny) by the quotient rule.
void grad_token(const Options& o, const LaunchArgs& args, int64_t t, const float* dmean, float* s,
                float* ds) {
  const float* dweight = args.in[0].as<const float>() + t * o.top_k;
  const int32_t* idx = args.in[2].as<const int32_t>() + t * o.top_k;
  float* out = args.out[0].as<float>() + t * o.experts;
  HWY_DYNAMIC_DISPATCH(route_scores)(args.in[1].as<const float>() + t * o.experts, s, o.experts);
  std::fill(ds, ds + o.experts, 0.0f);
  double kept = 1e-20, dot = 0;
  for (int64_t k = 0; k < o.top_k; ++k) {
    if (idx[k] < 0) continue;
    kept += s[idx[k]];
    dot += static_cast<double>(dweight[k]) * s[idx[k]];
  }
  for (int64_t k = 0; k < o.top_k; ++k) {
    if (idx[k] < 0) continue;
    const double d = o.normalise ? dweight[k] / kept - dot / (kept * kept) : dweight[k];
    ds[idx[k]] += static_cast<float>(o.scaling * d);
  }
  if (dmean) {
    double all = 0, mix = 0;
    for (int64_t e = 0; e < o.experts; ++e) {
      all += s[e];
      mix += static_cast<double>(dmean[e]) * s[e];
    }
    for (int64_t e = 0; e < o.experts; ++e) {
      ds[e] += static_cast<float>(dmean[e] / all - mix / (all * all));
    }
  }
  for (int64_t e = 0; e < o.experts; ++e) out[e] = ds[e] * s[e] * (1.0f - s[e]);
}

void run_route_grad(const LaunchArgs& args) {
  const int64_t batch = args.in[1].shape[0], length = args.in[1].shape[1];
  const Options o = options_of(args.attrs, args.in[1].shape[2]);
  const int32_t* pos = args.in[3].as<const int32_t>();
  const float* dmean = args.in.size() == 5 ? args.in[4].as<const float>() : nullptr;
  const int64_t step = static_cast<int64_t>(round_up_64(o.experts * sizeof(float)) / sizeof(float));
  float* scratch = Carver(args).take<float>(args.pool.size() * 2 * step);
  args.pool.run_ranges(batch * length, kBlockTokens, [&](int64_t begin, int64_t end, int worker) {
    float* s = scratch + worker * 2 * step;
    for (int64_t t = begin; t < end; ++t) {
      if (!routed(o, pos[t])) {
        float* out = args.out[0].as<float>() + t * o.experts;
        std::fill(out, out + o.experts, 0.0f);
        continue;
      }
      grad_token(o, args, t, dmean ? dmean + t / length * o.experts : nullptr, s, s + step);
    }
  });
}

constexpr Kernel kRows[] = {
    {"route", "route.blocks", &accepts_route, &route_workspace, &run_route},
    {"route_grad", "route_grad.tokens", &accepts_grad, &grad_workspace, &run_route_grad},
};

}  // namespace

std::span<const Kernel> route_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
