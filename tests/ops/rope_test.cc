// Rotation and attention against closed forms: pair layouts, amplitude, relative positions, masks.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"
#include "ops/attention.h"

namespace moetrain::test {
namespace {

using namespace ops;

std::vector<double> frequencies(int64_t width) {
  std::vector<double> f;
  for (int64_t m = 0; m < width / 2; ++m) {
    f.push_back(std::pow(10000.0, -2.0 * static_cast<double>(m) / static_cast<double>(width)));
  }
  return f;
}

std::vector<double> rotate(const std::vector<double>& x, double position, bool interleave,
                           double amplitude = 1, bool inverse = false) {
  const int64_t width = static_cast<int64_t>(x.size());
  return run(kRope,
             {{"rope_dim", width}, {"frequencies", frequencies(width)}, {"amplitude", amplitude},
              {"interleave", int64_t{interleave}}, {"inverse", int64_t{inverse}}},
             {filled({1, 1, width}, x), integers({1, 1}, {position})})[0].values;
}

// BR-07: width 8, theta 10000, a one at dimension 0, position 1.
TEST(Rope, PairsAdjacentEntriesOrHalves) {
  const std::vector<double> one{1, 0, 0, 0, 0, 0, 0, 0};
  const double c = std::cos(1.0), s = std::sin(1.0);
  expect_near(rotate(one, 1, true), {c, s, 0, 0, 0, 0, 0, 0}, 1e-15, "interleaved");
  expect_near(rotate(one, 1, false), {c, 0, 0, 0, s, 0, 0, 0}, 1e-15, "halves");
  const std::vector<double> last{0, 0, 0, 0, 0, 0, 0, 1};
  const double slow = std::pow(10000.0, -0.75);
  expect_near(rotate(last, 1, true), {0, 0, 0, 0, 0, 0, -std::sin(slow), std::cos(slow)}, 1e-15,
              "the slowest pair");
}

// BR-07: a score depends on the distance alone. BR-06: the amplitude enters it squared.
TEST(Rope, ScoresDependOnDistance) {
  const std::vector<double> q = normal("q", {8}).values, k = normal("k", {8}).values;
  for (bool interleave : {true, false}) {
    auto score = [&](double i, double j, double amplitude) {
      const auto a = rotate(q, i, interleave, amplitude), b = rotate(k, j, interleave, amplitude);
      double sum = 0;
      for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
      return sum;
    };
    const double near = score(3, 1, 1);
    EXPECT_NEAR(score(63, 61, 1), near, 1e-12);
    EXPECT_NEAR(score(2, 0, 1), near, 1e-12);
    EXPECT_NEAR(score(63, 61, 1.3688879), near * 1.8738542, 1e-6 * std::abs(near));
    EXPECT_GT(std::abs(score(4, 1, 1) - near), 1e-3);
  }
}

TEST(Rope, InverseUndoesTheRotation) {
  const std::vector<double> x = normal("x", {8}).values;
  for (bool interleave : {true, false}) {
    expect_near(rotate(rotate(x, 17, interleave), 17, interleave, 1, true), x, 1e-14, "round trip");
  }
}

TEST(Rope, LeavesTheOtherEntriesAlone) {
  const Operand x = normal("x", {1, 2, 3, 6});
  const auto y = run(kRope,
                     {{"rope_dim", int64_t{2}}, {"frequencies", std::vector<double>{1.0}},
                      {"amplitude", 2.0}, {"interleave", int64_t{1}}},
                     {x, integers({1, 2}, {0, 5})})[0].values;
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(y[row * 6 + c], x.values[row * 6 + c]);
  }
  EXPECT_DOUBLE_EQ(y[4], 2 * x.values[4]);  // position 0: the amplitude alone
}

// ---- attention ----

std::vector<Result> attend(const Operand& q, const Operand& kv, const Operand& kr,
                           const std::vector<double>& start, double scale, int64_t nope) {
  const int64_t b = q.type.shape[0], s = q.type.shape[1];
  std::vector<double> pos;
  for (int64_t i = 0; i < b * s; ++i) pos.push_back(static_cast<double>(i % s));
  return run(kAttention, {{"scale", scale}, {"nope", nope}},
             {q, kv, kr, integers({b, s}, pos), integers({b, s}, pos), integers({b, s}, start)});
}

// Zero queries weigh all visible keys alike: o is the running mean of the values of the document.
TEST(Attention, IsCausalAndStartsAtTheDocument) {
  const Operand kv = normal("kv", {1, 4, 1, 3});
  const Operand q = filled({1, 4, 1, 3}, std::vector<double>(12, 0.0));
  const Operand kr = normal("kr", {1, 4, 1});
  const std::vector<double> start{0, 0, 2, 2};
  const auto r = attend(q, kv, kr, start, 0.7, 2);
  for (int64_t i = 0; i < 4; ++i) {
    double mean = 0;
    const int64_t first = static_cast<int64_t>(start[i]), count = i - first + 1;
    for (int64_t z = first; z <= i; ++z) mean += kv.values[z * 3 + 2] / static_cast<double>(count);
    EXPECT_NEAR(r[0].values[i], mean, 1e-14);
    EXPECT_NEAR(r[1].values[i], std::log(static_cast<double>(count)), 1e-14);
  }
}

// Two keys, one head: the weight of the second is a sigmoid of the score difference.
TEST(Attention, ScoresUseTheOwnAndTheSharedPart) {
  const Operand q = filled({1, 2, 1, 2}, {0, 0, 2, 3});
  const Operand kv = filled({1, 2, 1, 2}, {0.5, 10, -1, 20});  // own key part, value
  const Operand kr = filled({1, 2, 1}, {0.25, 1.5});
  const auto r = attend(q, kv, kr, {0, 0}, 0.4, 1);
  const double s0 = 0.4 * (2 * 0.5 + 3 * 0.25), s1 = 0.4 * (2 * -1 + 3 * 1.5);
  const double p1 = 1 / (1 + std::exp(s0 - s1));
  EXPECT_NEAR(r[0].values[1], 10 * (1 - p1) + 20 * p1, 1e-12);
  EXPECT_NEAR(r[1].values[1], std::log(std::exp(s0) + std::exp(s1)), 1e-12);
}

TEST(Attention, SurvivesLargeScores) {
  const Operand q = filled({1, 2, 1, 1}, {1e4, 1e4}), kv = filled({1, 2, 1, 2}, {1, 3, 2, 5});
  const auto r = attend(q, kv, filled({1, 2, 0}, {}), {0, 0}, 1.0, 1);
  EXPECT_EQ(r[0].values, (std::vector<double>{3, 5}));
}

}  // namespace
}  // namespace moetrain::test
