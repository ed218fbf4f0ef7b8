// The router against numbers worked out by hand: group choice, masks, ties, weights, loads, balance.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"
#include "ops/route.h"

namespace moetrain::test {
namespace {

using namespace ops;

struct Options {
  int64_t top_k = 2, groups = 1, top_groups = 1;
  bool normalise = true;
  double scaling = 1;
  int64_t valid_positions = 0;
};

std::vector<Result> route(const std::vector<double>& scores, const std::vector<double>& bias,
                          const Options& o, int64_t batch = 1) {
  const int64_t experts = static_cast<int64_t>(bias.size());
  const int64_t length = static_cast<int64_t>(scores.size()) / experts / batch;
  std::vector<double> logits, pos;
  for (double s : scores) logits.push_back(std::log(s / (1 - s)));
  for (int64_t t = 0; t < batch * length; ++t) pos.push_back(static_cast<double>(t % length));
  const Attrs attrs{{"top_k", o.top_k}, {"groups", o.groups}, {"top_groups", o.top_groups},
                    {"normalise", int64_t{o.normalise}}, {"scaling", o.scaling},
                    {"valid_positions", o.valid_positions}};
  return run(kRoute, attrs,
             {filled({batch, length, experts}, logits), filled({experts}, bias),
              integers({batch, length}, pos)});
}

using Numbers = std::vector<double>;

// BR-09: groups rank by the sum of their two best biased scores, masked experts never win.
const Numbers kScores{.9, .05, .6, .5, .2, .3, .58, .56};

TEST(Router, RanksGroupsByTheirTwoBestBiasedScores) {
  const auto r = route(kScores, Numbers(8, -1.0), {.groups = 4, .top_groups = 2});
  EXPECT_EQ(r[0].values, (Numbers{2, 6}));
  expect_near(r[1].values, {0.508475, 0.491525}, 1e-6, "weights");
}

TEST(Router, ScalesAfterNormalising) {
  const auto r = route(kScores, Numbers(8, -1.0), {.groups = 4, .top_groups = 2, .scaling = 2.5});
  expect_near(r[1].values, {1.271186, 1.228814}, 1e-6, "weights");
}

TEST(Router, ScalesRawWeightsToo) {
  const auto r = route(kScores, Numbers(8, -1.0),
                       {.groups = 4, .top_groups = 2, .normalise = false, .scaling = 2.5});
  expect_near(r[1].values, {1.5, 1.45}, 1e-12, "weights");
}

TEST(Router, OneGroupIsPlainTopK) {
  EXPECT_EQ(route(kScores, Numbers(8, -1.0), {})[0].values, (Numbers{0, 2}));
}

// Biased scores of the kept group are negative; a mask of 0 would let an excluded expert in.
TEST(Router, ExcludedGroupsNeverWin) {
  const auto r = route({.5, .5, .6, .4}, {-5, -5, -5, -5},
                       {.top_k = 2, .groups = 2, .top_groups = 1});
  EXPECT_EQ(r[0].values, (Numbers{0, 1}));  // both groups sum to 1.0: the lower group
}

TEST(Router, GroupsOfOneExpertCompeteAlone) {
  const auto r = route({.2, .7, .6, .1}, Numbers(4, 0.0),
                       {.top_k = 2, .groups = 4, .top_groups = 2});
  EXPECT_EQ(r[0].values, (Numbers{1, 2}));
}

// Ties: the lower expert index, the lower group index; also in the plain choice of the balance loss.
TEST(Router, LowerIndexWinsTies) {
  const auto plain = route(Numbers(8, 0.5), Numbers(8, 0.0), {.top_k = 3});
  EXPECT_EQ(plain[0].values, (Numbers{0, 1, 2}));
  EXPECT_EQ(plain[3].values, (Numbers{1, 1, 1, 0, 0, 0, 0, 0}));
  const auto groups = route(Numbers(8, 0.5), Numbers(8, 0.0),
                            {.top_k = 2, .groups = 4, .top_groups = 2});
  EXPECT_EQ(groups[0].values, (Numbers{0, 1}));
  const auto last = route({.5, .6, .6, .6}, Numbers(4, 0.0), {.top_k = 2});
  EXPECT_EQ(last[0].values, (Numbers{1, 2}));
}

// The bias chooses; weights, plain counts and mean scores come from the raw scores.
TEST(Router, BiasOnlyChooses) {
  const auto r = route({.6, .5, .4, .3}, {0, 0, 0, 1}, {.top_k = 2});
  EXPECT_EQ(r[0].values, (Numbers{0, 3}));
  expect_near(r[1].values, {.6 / .9, .3 / .9}, 1e-12, "weights");
  EXPECT_EQ(r[2].values, (Numbers{1, 0, 0, 1}));
  EXPECT_EQ(r[3].values, (Numbers{1, 1, 0, 0}));
  expect_near(r[4].values, {.6 / 1.8, .5 / 1.8, .4 / 1.8, .3 / 1.8}, 1e-12, "mean score");
}

TEST(Router, LeavesInvalidPositionsOut) {
  Numbers scores;
  for (int t = 0; t < 6; ++t) scores.insert(scores.end(), {.6, .5, .4, .3});
  const auto r = route(scores, Numbers(4, 0.0), {.top_k = 2, .valid_positions = 2}, 2);
  EXPECT_EQ(r[0].values, (Numbers{0, 1, 0, 1, -1, -1, 0, 1, 0, 1, -1, -1}));
  EXPECT_EQ(r[1].values[4], 0);
  EXPECT_EQ(r[2].values, (Numbers{4, 4, 0, 0}));
  EXPECT_EQ(r[3].values, (Numbers{2, 2, 0, 0, 2, 2, 0, 0}));
  expect_near({r[4].values[0]}, {2 * .6 / 1.8}, 1e-12, "mean score");
}

TEST(Router, LoadsCountEveryChoiceOnce) {
  const Operand scores = normal("loads", {64, 8});
  Numbers s;
  for (double v : scores.values) s.push_back(1 / (1 + std::exp(-v)));
  const auto r = route(s, Numbers(8, 0.0), {.top_k = 2, .groups = 4, .top_groups = 2}, 8);
  double sum = 0;
  for (double l : r[2].values) sum += l;
  EXPECT_EQ(sum, 64 * 2);
}

double balance(const std::vector<Result>& r, int64_t experts, int64_t top_k, int64_t tokens) {
  const double coefficient = static_cast<double>(experts) /
                             static_cast<double>(top_k * tokens) / static_cast<double>(tokens);
  return run(kBalanceLoss, {{"coefficient", coefficient}},
             {filled({1, experts}, r[3].values), filled({1, experts}, r[4].values),
              filled({}, {1.0})})[0].values[0];
}

// BR-03 (b): even routing gives 1, everything on the same two of eight experts gives 4.
TEST(Balance, HasTheWrittenFormula) {
  constexpr double kTiny = 1e-9;
  Numbers even, same;
  for (int t = 0; t < 8; ++t) {
    for (int e = 0; e < 8; ++e) {
      const bool mine = e == t || e == (t + 1) % 8;
      even.push_back(0.5 + (mine ? kTiny : 0));
      same.push_back(e < 2 ? 0.9 : kTiny);
    }
  }
  EXPECT_NEAR(balance(route(even, Numbers(8, 0.0), {}), 8, 2, 8), 1.0, 1e-8);
  EXPECT_NEAR(balance(route(same, Numbers(8, 0.0), {}), 8, 2, 8), 4.0, 1e-7);
}

TEST(Router, RefusesImpossibleOptions) {
  EXPECT_THROW(route(kScores, Numbers(8, 0.0), {.groups = 3}), InternalError);
  EXPECT_THROW(route(kScores, Numbers(8, 0.0), {.groups = 4, .top_groups = 5}), InternalError);
  EXPECT_THROW(route(kScores, Numbers(8, 0.0), {.top_k = 3, .groups = 4, .top_groups = 1}),
               InternalError);
  EXPECT_THROW(route(kScores, Numbers(8, 0.0), {.top_k = 9}), InternalError);
}

}  // namespace
}  // namespace moetrain::test
