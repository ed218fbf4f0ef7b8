// Dispatch, grouped products and combine together: the plan's layout, empty experts, split tokens.
#include <gtest/gtest.h>

#include <array>

#include "harness.h"
#include "ops/basic.h"
#include "ops/experts.h"

namespace moetrain::test {
namespace {

using namespace ops;
using Numbers = std::vector<double>;

std::vector<Result> dispatch_rows(const Operand& x, const Operand& idx, int64_t experts) {
  return run(kDispatch, {{"experts", experts}}, {x, idx});
}

// Three tokens, two slots: rows come expert-major, then by token, then by slot.
TEST(Dispatch, OrdersRowsByExpertTokenSlot) {
  const Operand x = filled({1, 3, 1}, {10, 20, 30});
  const Operand idx = integers({1, 3, 2}, {0, 2, 2, -1, 0, 2});
  const auto r = dispatch_rows(x, idx, 3);
  EXPECT_EQ(r[0].shape, (Shape{5, 1}));
  EXPECT_EQ(r[0].values, (Numbers{10, 30, 10, 20, 30}));
  EXPECT_EQ(r[1].values, (Numbers{0, 2, 2, 5, 0, 4, 1, 2, 5, -1}));
}

TEST(Dispatch, HandlesNoTokenAtAllAndOneExpertForAll) {
  const Operand x = normal("x", {1, 4, 2});
  const auto none = dispatch_rows(x, integers({1, 4, 1}, {-1, -1, -1, -1}), 2);
  EXPECT_EQ(none[0].shape, (Shape{0, 2}));
  EXPECT_EQ((Numbers{none[1].values.begin(), none[1].values.begin() + 3}), (Numbers{0, 0, 0}));
  const auto all = dispatch_rows(x, integers({1, 4, 1}, {1, 1, 1, 1}), 2);
  EXPECT_EQ(all[0].values, x.values);
  EXPECT_EQ((Numbers{all[1].values.begin(), all[1].values.begin() + 3}), (Numbers{0, 0, 4}));
}

TEST(Dispatch, RefusesAnExpertOutOfRange) {
  EXPECT_THROW(dispatch_rows(normal("x", {1, 1, 2}), integers({1, 1, 1}, {3}), 3), InternalError);
}

/// y = combine(grouped_matmul(dispatch(x))) in one graph.
Result expert_layer(const Operand& x, const Operand& idx, const Operand& weight, const Operand& w) {
  Graph g;
  const int64_t experts = w.type.shape[0];
  const Value x_v = input(g, "x", DType::kF32, x.type.shape);
  const Value idx_v = input(g, "idx", DType::kI32, idx.type.shape);
  const Value weight_v = input(g, "weight", DType::kF32, weight.type.shape);
  const Value w_v = input(g, "w", DType::kF32, w.type.shape);
  const Dispatched d = dispatch(g, x_v, idx_v, experts, "dispatch");
  const Value y = grouped_matmul(g, d.rows, w_v, d.plan, "up");
  g.mark_output("y", combine(g, y, d.plan, weight_v, idx_v, DType::kF32, "combine"));
  auto out = interpret(g, {{"x", to_host(x)}, {"idx", to_host(idx)}, {"weight", to_host(weight)},
                           {"w", to_host(w)}});
  return {out["y"].shape, values_of(out["y"])};
}

// y[t] = sum over slots weight * W_expert x[t], written as plain loops.
Numbers by_token(const Operand& x, const Operand& idx, const Operand& weight, const Operand& w) {
  const int64_t n_out = w.type.shape[1], n_in = w.type.shape[2], top_k = idx.type.shape[2];
  const int64_t tokens = numel(idx.type.shape) / top_k;
  Numbers y(tokens * n_out, 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t slot = t * top_k + k, e = static_cast<int64_t>(idx.values[slot]);
      if (e < 0) continue;
      for (int64_t n = 0; n < n_out; ++n) {
        for (int64_t c = 0; c < n_in; ++c) {
          y[t * n_out + n] += weight.values[slot] * w.values[(e * n_out + n) * n_in + c] *
                              x.values[t * n_in + c];
        }
      }
    }
  }
  return y;
}

const Operand kIdx =
    integers({2, 4, 2}, {0, 1, 1, 3, -1, -1, 0, 3, 0, 1, 3, -1, 0, 3, 1, 3});

TEST(Experts, EqualPlainLoops) {
  const Operand x = normal("x", {2, 4, 6}), weight = normal("r", {2, 4, 2});
  const Operand w = normal("w", {4, 3, 6});
  expect_near(expert_layer(x, kIdx, weight, w).values, by_token(x, kIdx, weight, w), 1e-13, "y");
}

// The law for dispatch and combine: every half of the tokens, cut anywhere, is a layer of its own.
TEST(Experts, TokensMaySplitOverBatchOrSequence) {
  const Operand x = normal("x", {2, 4, 6}), weight = normal("r", {2, 4, 2});
  const Operand w = normal("w", {4, 3, 6});
  const Numbers whole = expert_layer(x, kIdx, weight, w).values;
  auto part = [](const Operand& o, int64_t b0, int64_t b1, int64_t s0, int64_t s1) {
    Operand p{{o.type.dtype, {b1 - b0, s1 - s0, o.type.shape[2]}}, {}};
    const int64_t width = o.type.shape[2];
    for (int64_t b = b0; b < b1; ++b) {
      const auto row = o.values.begin() + (b * 4 + s0) * width;
      p.values.insert(p.values.end(), row, row + (s1 - s0) * width);
    }
    return p;
  };
  for (const auto& cut : std::vector<std::array<int64_t, 4>>{
           {0, 1, 0, 4}, {1, 2, 0, 4}, {0, 2, 0, 2}, {0, 2, 2, 4}, {1, 2, 1, 2}}) {
    const auto [b0, b1, s0, s1] = cut;
    const Result y = expert_layer(part(x, b0, b1, s0, s1), part(kIdx, b0, b1, s0, s1),
                                  part(weight, b0, b1, s0, s1), w);
    const Operand expected = part(filled({2, 4, 3}, whole), b0, b1, s0, s1);
    expect_near(y.values, expected.values, 1e-13, "part of the tokens");
  }
}

TEST(GroupedMatmul, IdleExpertsGetExactZeros) {
  const Operand dy = ragged("dy", 3, 4, 4, 2), x = ragged("x", 3, 4, 4, 2);
  const Operand plan = integers({4 + 4}, {0, 2, 2, 4, 0, 1, 2, 3});
  const auto dw = run(kGroupedMatmulDw, {}, {dy, x, plan})[0];
  for (int64_t i = 4; i < 8; ++i) EXPECT_EQ(dw.values[i], 0.0);
  const Operand acc = normal("acc", {3, 2, 2});
  const auto into =
      run(kGroupedMatmulDw, {{"accumulate", int64_t{1}}}, {dy, x, plan, acc})[0];
  for (int64_t i = 4; i < 8; ++i) EXPECT_EQ(into.values[i], acc.values[i]);
}

// Ops on rows read the offsets only: a plan may carry more behind them.
TEST(GroupedMatmul, IgnoresWhatFollowsTheOffsets) {
  const Operand x = ragged("x", 2, 4, 3, 2), w = normal("w", {2, 2, 2});
  const auto a = run(kGroupedMatmul, {}, {x, w, integers({3 + 4}, {0, 1, 3, 0, 1, 2, -1})})[0];
  const auto b = run(kGroupedMatmul, {}, {x, w, integers({9}, {0, 1, 3, 9, 9, 9, 9, 9, 9})})[0];
  EXPECT_EQ(a.values, b.values);
}

}  // namespace
}  // namespace moetrain::test
