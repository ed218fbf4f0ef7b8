// One layer of the model in the options, forward and backward, plus head and optimizer.
#include "runtime/device/cpu/bench_cases.h"

#include "base/text.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/projections.h"
#include "ops/route.h"
#include "ops/swiglu.h"
#include "ops/update.h"
#include "ops/vocab_loss.h"

namespace moetrain::cpu {
namespace {

BenchOperand tensor(DType dtype, Shape shape) { return {{dtype, std::move(shape), false}, 0, {}}; }

BenchOperand rows_of(DType dtype, int64_t experts, int64_t rows, int64_t width) {
  return {{dtype, {experts, rows, width}, true}, rows, {}};
}

BenchOperand numbers(Shape shape, std::vector<int32_t> values) {
  return {{DType::kI32, std::move(shape), false}, 0, std::move(values)};
}

class Builder {
 public:
  Builder(const BenchKernelOptions& o, DType t) : o_(o), t_(t) {}

  void product(int64_t m, int64_t n, int64_t k) {
    const std::string shape = cat(m, "x", n, "x", k);
    add(ops::kMatmul, {}, {tensor(t_, {m, k}), tensor(t_, {n, k})}, shape);
    add(ops::kMatmulDx, {}, {tensor(t_, {m, n}), tensor(t_, {n, k})}, shape);
    add(ops::kMatmulDw, {{"accumulate", int64_t{1}}},
        {tensor(t_, {m, n}), tensor(t_, {m, k}), tensor(DType::kF32, {n, k})}, shape);
  }

  /// `each` rows for every expert.
  void grouped(int64_t each, int64_t n, int64_t k) {
    const int64_t e = o_.experts, rows = each * e;
    std::vector<int32_t> offsets;
    for (int64_t i = 0; i <= e; ++i) offsets.push_back(static_cast<int32_t>(i * each));
    const BenchOperand plan = numbers({e + 1}, offsets), w = tensor(t_, {e, n, k});
    const std::string shape = cat(e, " x ", each, "x", n, "x", k);
    add(ops::kGroupedMatmul, {}, {rows_of(t_, e, rows, k), w, plan}, shape, rows);
    add(ops::kGroupedMatmulDx, {}, {rows_of(t_, e, rows, n), w, plan}, shape, rows);
    add(ops::kGroupedMatmulDw, {{"accumulate", int64_t{1}}},
        {rows_of(t_, e, rows, n), rows_of(t_, e, rows, k), plan, tensor(DType::kF32, {e, n, k})},
        shape);
  }

  /// Gate and up of one input, dense (`experts` = 0) or for `each` rows of every expert: forward
  /// with the activation, both gradients, and the activation's gradient behind the down projection.
  void gated(int64_t each, int64_t experts, int64_t n, int64_t k) {
    const bool grouped = experts > 0;
    const int64_t rows = grouped ? each * experts : each;
    auto wide = [&](int64_t width) {
      return grouped ? rows_of(t_, experts, rows, width) : tensor(t_, {rows, width});
    };
    auto weight = [&](DType t, int64_t out, int64_t in) {
      return tensor(t, grouped ? Shape{experts, out, in} : Shape{out, in});
    };
    std::vector<int32_t> offsets;
    for (int64_t i = 0; i <= experts; ++i) offsets.push_back(static_cast<int32_t>(i * each));
    Attrs both{{"count", int64_t{2}}}, act = both, sums = both, one;
    auto add_planned = [&](const OpDef& op, Attrs attrs, std::vector<BenchOperand> in,
                           std::vector<BenchOperand> behind = {}) {
      if (grouped) attrs.set("grouped", int64_t{1});
      if (grouped) in.push_back(numbers({experts + 1}, offsets));
      in.insert(in.end(), behind.begin(), behind.end());
      add(op, attrs, in, cat(grouped ? cat(experts, " x ") : "", each, "x2x", n, "x", k), rows);
    };
    act.set("act", std::string("swiglu")), sums.set("accumulate", int64_t{1});
    const BenchOperand w = weight(t_, n, k), sum = weight(DType::kF32, n, k);
    add_planned(ops::kProjections, act, {wide(k), w, w});
    add_planned(ops::kProjectionsDx, both, {wide(n), wide(n), w, w});
    add_planned(ops::kProjectionsDw, sums, {wide(n), wide(n), wide(k)}, {sum, sum});
    add_planned(ops::kMatmulDxSwiglu, one, {wide(k), weight(t_, k, n), wide(n), wide(n)});
  }

  void attention() {
    const int64_t b = o_.batch, s = o_.sequence, h = o_.heads;
    const Attrs attrs{{"nope", o_.nope}, {"scale", 0.1}};
    const BenchOperand q = tensor(t_, {b, s, h, o_.nope + o_.rope});
    const BenchOperand kv = tensor(t_, {b, s, h, o_.nope + o_.value}),
                       kr = tensor(t_, {b, s, o_.rope});
    const BenchOperand out = tensor(t_, {b, s, h, o_.value}), lse = tensor(DType::kF32, {b, s, h});
    const BenchOperand pos = positions(), start = numbers({b, s}, std::vector<int32_t>(b * s, 0));
    const std::string shape = cat(b, "x", h, " heads, ", s);
    add(ops::kAttention, attrs, {q, kv, kr, pos, pos, start}, shape);
    add(ops::kAttentionGrad, attrs, {out, q, kv, kr, out, lse, pos, pos, start}, shape);
  }

  void head() {
    const int64_t n = o_.batch * o_.sequence;
    std::vector<int32_t> labels;
    for (int64_t i = 0; i < n; ++i) labels.push_back(static_cast<int32_t>(i * 31 % o_.vocab));
    add(ops::kVocabLoss, {{"gradient", int64_t{1}}},
        {tensor(t_, {n, o_.hidden}), tensor(t_, {o_.vocab, o_.hidden}), numbers({n}, labels),
         tensor(DType::kF32, {n}), tensor(DType::kF32, {})},
        cat(n, "x", o_.vocab, "x", o_.hidden));
  }

  void streaming() {
    const int64_t b = o_.batch, s = o_.sequence, d = o_.hidden, n = b * s;
    const BenchOperand x = tensor(t_, {n, d}), gain = tensor(DType::kF32, {d});
    const std::string shape = cat(n, "x", d);
    add(ops::kRmsNorm, {{"eps", 1e-6}}, {x, gain}, shape);
    add(ops::kRmsNormGrad, {}, {x, x, gain, tensor(DType::kF32, {n})}, shape);
    add(ops::kAdd, {}, {x, x}, shape);
    add(ops::kCast, {{"dtype", std::string("f32")}}, {x}, shape);
    const BenchOperand wide = tensor(t_, {n, o_.ffn});
    add(ops::kSwiglu, {}, {wide, wide}, cat(n, "x", o_.ffn));
    add(ops::kSwigluGrad, {}, {wide, wide, wide}, cat(n, "x", o_.ffn));
    std::vector<double> frequencies(o_.rope / 2, 0.1);
    add(ops::kRope,
        {{"rope_dim", o_.rope},
         {"frequencies", frequencies},
         {"amplitude", 1.0},
         {"interleave", int64_t{1}}},
        {tensor(t_, {b, s, o_.heads, o_.nope + o_.rope}), positions()},
        cat(n, "x", o_.heads, " heads"));
    const BenchOperand part = tensor(t_, {n, d / 2});
    add(ops::kConcat, {}, {part, part}, shape);
    add(ops::kSplit, {{"sizes", std::vector<int64_t>{d / 2, d - d / 2}}}, {x}, shape);
  }

  void tokens() {
    const int64_t b = o_.batch, s = o_.sequence, e = o_.experts, k = o_.top_k, slots = b * s * k;
    std::vector<int32_t> chosen, plan;
    for (int64_t i = 0; i < slots; ++i)
      chosen.push_back(static_cast<int32_t>((i / k * 5 + i % k) % e));
    for (int64_t x = 0; x <= e; ++x) plan.push_back(static_cast<int32_t>(slots / e * x));
    plan.back() = static_cast<int32_t>(slots);
    for (int64_t i = 0; i < slots; ++i)
      plan.push_back(static_cast<int32_t>((i * 97 + i / slots) % slots));
    const BenchOperand idx = numbers({b, s, k}, chosen), weight = tensor(DType::kF32, {b, s, k});
    const BenchOperand x = tensor(t_, {b, s, o_.hidden}), rows = rows_of(t_, e, slots, o_.hidden);
    const BenchOperand order = numbers({e + 1 + slots}, plan);
    const Attrs attrs{{"experts", e}};
    const std::string shape = cat(b * s, "x", k, "x", o_.hidden);
    add(ops::kDispatch, attrs, {x, idx}, shape, slots);
    // These read a permutation of all slots only when one exists with that stride.
    if (slots % 97 != 0) {
      add(ops::kDispatchGrad, attrs, {rows, order, idx}, shape);
      add(ops::kCombine, attrs, {rows, order, weight, idx}, shape);
      add(ops::kCombineGrad, attrs, {x, order, weight, idx, rows}, shape, slots);
    }
    add(ops::kRoute,
        {{"top_k", k},
         {"groups", int64_t{1}},
         {"top_groups", int64_t{1}},
         {"normalise", int64_t{1}},
         {"scaling", 2.5},
         {"valid_positions", int64_t{0}}},
        {tensor(DType::kF32, {b, s, e}), tensor(DType::kF32, {e}), positions()},
        cat(b * s, "x", e));
  }

  void update() {
    const Shape w{o_.experts, o_.expert_width, o_.hidden};
    const BenchOperand p = tensor(DType::kF32, w);
    const std::string shape = cat(numel(w));
    add(ops::kAdamw, {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}},
        {p, p, p, p, tensor(DType::kF32, {}), tensor(DType::kF32, {4})}, shape);
    add(ops::kSumSquares, {}, {p}, shape);
    add(ops::kClear, {}, {p}, shape);
    add(ops::kAssign, {}, {tensor(t_, w), p}, shape);
  }

  std::vector<BenchCase> take() { return std::move(cases_); }

 private:
  BenchOperand positions() const {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < o_.batch * o_.sequence; ++i) {
      values.push_back(static_cast<int32_t>(i % o_.sequence));
    }
    return numbers({o_.batch, o_.sequence}, std::move(values));
  }

  void add(const OpDef& op, Attrs attrs, std::vector<BenchOperand> operands, std::string shape,
           int64_t rows = 0) {
    cases_.push_back({&op, std::move(attrs), std::move(operands), std::move(shape), rows});
  }

  const BenchKernelOptions& o_;
  DType t_;
  std::vector<BenchCase> cases_;
};

}  // namespace

std::vector<BenchCase> bench_cases(const BenchKernelOptions& o, DType dtype) {
  Builder build(o, dtype);
  const int64_t tokens = o.batch * o.sequence;
  build.product(tokens, o.hidden, o.hidden);
  build.product(tokens, o.ffn, o.hidden);
  build.product(tokens, o.hidden, o.ffn);
  build.product(tokens, o.expert_width, o.hidden);
  for (int64_t each :
       {std::max<int64_t>(1, tokens * o.top_k / o.experts), int64_t{48}, int64_t{8}}) {
    build.grouped(each, o.expert_width, o.hidden);
    build.gated(each, o.experts, o.expert_width, o.hidden);
  }
  build.gated(tokens, 0, o.ffn, o.hidden);
  build.attention();
  build.head();
  build.streaming();
  build.tokens();
  build.update();
  return build.take();
}

}  // namespace moetrain::cpu
