// Bad numbers must reach the loss and the gradient norm: no kernel may clamp a NaN away.
#include <cmath>

#include "kernels/harness.h"
#include "ops/attention.h"
#include "ops/norm.h"
#include "ops/swiglu.h"
#include "ops/update.h"
#include "ops/vocab_loss.h"

namespace moetrain::cpu::testing {
namespace {

using Nan = EachTarget;

/// `n` ordinary numbers, with a NaN at `bad`.
std::vector<float> numbers(int64_t n, int64_t bad) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(i == bad ? NAN : static_cast<float>(i % 7) - 3.0f);
  return values;
}

TEST_P(Nan, OfScores) {
  // A NaN in query 20 of head 1 spoils its output and log-sum-exp, and no other query's.
  const int64_t s = 40, h = 2, n = 4, r = 2, v = 4;
  std::vector<int32_t> pos;
  for (int64_t i = 0; i < s; ++i) pos.push_back(static_cast<int32_t>(i));
  Case c(ops::kAttention, {{"nope", n}, {"scale", 0.3}});
  c.floats({1, s, h, n + r}, numbers(s * h * (n + r), (20 * h + 1) * (n + r)))
      .normal(DType::kF32, {1, s, h, n + v})
      .normal(DType::kF32, {1, s, r})
      .integers({1, s}, pos)
      .integers({1, s}, pos)
      .integers({1, s}, std::vector<int32_t>(s, 0));
  const auto out = c.kernel_values(2);
  for (int64_t i = 0; i < s * h; ++i) {
    EXPECT_EQ(std::isnan(out[1][i]), i == 20 * h + 1) << i;
    for (int64_t k = 0; k < v; ++k) EXPECT_EQ(std::isnan(out[0][i * v + k]), i == 20 * h + 1) << i;
  }
}

TEST_P(Nan, OfLogits) {
  const int64_t tokens = 5, vocab = 300, d = 6;
  for (int64_t bad : {0, 137 * 6, 299 * 6 + 5}) {
    Case c(ops::kVocabLoss, {{"gradient", int64_t{1}}});
    c.normal(DType::kF32, {tokens, d})
        .floats({vocab, d}, numbers(vocab * d, bad))
        .integers({tokens}, {1, 2, 3, 4, 5})
        .floats({tokens}, {1, 1, 1, 1, 1})
        .floats({}, {1});
    EXPECT_TRUE(std::isnan(c.kernel_values(2)[0][0])) << bad;
  }
}

TEST_P(Nan, OfRows) {
  Case norm(ops::kRmsNorm, {{"eps", 1e-6}});
  norm.floats({3, 37}, numbers(111, 40)).normal(DType::kF32, {37});
  const auto y = norm.kernel_values(2);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(std::isnan(y[1][i]), i == 1);
  Case swiglu(ops::kSwiglu, {});
  swiglu.floats({61}, numbers(61, 45)).normal(DType::kF32, {61});
  EXPECT_TRUE(std::isnan(swiglu.kernel_values(2)[0][45]));
  Case squares(ops::kSumSquares, {});
  squares.floats({9001}, numbers(9001, 8999));
  EXPECT_TRUE(std::isnan(squares.kernel_values(2)[0][0]));
}

MOETRAIN_ON_EACH_TARGET(Nan);

}  // namespace
}  // namespace moetrain::cpu::testing
