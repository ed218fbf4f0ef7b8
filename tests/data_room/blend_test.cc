// NumPy's shuffle, splits and blends against the field's published vectors.
#include "data/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/numpy_random.h"
#include "data/split.h"

namespace moetrain {
namespace {

using Ints = std::vector<int>;

TEST(NumpyRandom, ShufflesLikeRandomState) {
  NumpyRandom random(1234);
  Ints a(10), b(10);
  std::iota(a.begin(), a.end(), 0);
  std::iota(b.begin(), b.end(), 0);
  random.shuffle(std::span(a));
  random.shuffle(std::span(b));
  EXPECT_EQ(a, (Ints{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  EXPECT_EQ(b, (Ints{7, 3, 5, 1, 4, 8, 0, 2, 6, 9}));
}

TEST(NumpyRandom, KnownFirstWord) {
  // The reference mt19937ar with init_genrand(5489) starts with 3499211612, the 10000th is
  // 4123659995.
  NumpyRandom random(5489);
  EXPECT_EQ(random.next(), 3499211612u);
  for (int i = 0; i < 9998; ++i) random.next();
  EXPECT_EQ(random.next(), 4123659995u);
}

TEST(Split, CutsLikeTheField) {
  const auto shares = parse_split("99,1,0");
  const auto range = [&](Split split) { return split_range(shares, 1000, split); };
  EXPECT_EQ(range(Split::kTrain).end, 990);
  EXPECT_EQ(range(Split::kValidation).begin, 990);
  EXPECT_EQ(range(Split::kValidation).end, 1000);
  EXPECT_EQ(range(Split::kTest).size(), 0);
  // Half to even: 0.5 * 5 = 2.5 rounds to 2, 0.5 * 7 = 3.5 rounds to 4.
  EXPECT_EQ(split_range(parse_split("1,1"), 5, Split::kTrain).end, 2);
  EXPECT_EQ(split_range(parse_split("1,1"), 7, Split::kTrain).end, 4);
  EXPECT_EQ(split_range(parse_split("1,1"), 1, Split::kTrain).size(), 0);
  EXPECT_EQ(split_range(parse_split(" 969 , 30 ,1 "), 3, Split::kValidation).size(), 0);
  for (const char* bad :
       {"", "a", "1,,1", "1,-1", "0,0,0", "1,2,3,4", "nan", "inf,1", "1;2", "1 2"}) {
    EXPECT_THROW(parse_split(bad), UserError) << bad;
  }
}

TEST(Split, SumsInNumpyOrder) {
  // Eight running sums: 1e16 + 1 + ... loses the ones in sequence, the pairwise order keeps some.
  std::vector<double> v{1e16, 1, 1, 1, 1, 1, 1, 1, -1e16};
  EXPECT_EQ(numpy_sum(v), (((1e16 + 1.0) + (1.0 + 1.0)) + ((1.0 + 1.0) + (1.0 + 1.0))) + -1e16);
  std::vector<double> many(1000, 0.1);
  EXPECT_NEAR(numpy_sum(many), 100.0, 1e-12);
}

Ints sets_of(const Blend& blend) {
  Ints sets;
  for (int64_t i = 0; i < blend.samples(); ++i) sets.push_back(static_cast<int>(blend.at(i).set));
  return sets;
}

Blend greedy(std::vector<double> w, int64_t n) { return Blend::greedy(std::move(w), n); }
Blend twice_normalised(std::vector<double> w, int64_t n) {
  return greedy(normalized(normalized(w)), n);
}

TEST(Blend, GoldenVectors) {
  const Blend a = greedy({.5, .25, .25}, 8);
  EXPECT_EQ(sets_of(a), (Ints{0, 1, 2, 0, 0, 1, 2, 0}));
  const Ints samples{0, 0, 0, 1, 2, 1, 1, 3};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(a.at(i).sample, samples[static_cast<size_t>(i)]);
  EXPECT_EQ(sets_of(greedy({.5, .3125, .1875}, 16)),
            (Ints{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0}));
}

TEST(Blend, TiesThatTheLastBitDecides) {
  const std::vector<double> w{.7, .2, .1};
  const Ints twice{0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1}, once{0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1};
  EXPECT_EQ(sets_of(greedy(w, 12)), twice);
  EXPECT_EQ(sets_of(greedy(normalized(w), 12)), once);
  EXPECT_EQ(sets_of(twice_normalised(w, 12)), twice);
}

TEST(Blend, ExtremeWeightsStayWithinOne) {
  for (int64_t n : {1, 2, 10, 1000, 2000}) {
    const std::vector<int64_t> taken = twice_normalised({.001, .999}, n).taken(n);
    EXPECT_EQ(taken[0] + taken[1], n);
    EXPECT_NEAR(static_cast<double>(taken[0]), .001 * static_cast<double>(n), 1.0) << n;
    EXPECT_NEAR(static_cast<double>(taken[1]), .999 * static_cast<double>(n), 1.0) << n;
  }
  EXPECT_EQ(blend_request(2000, .001), 3);
  EXPECT_EQ(blend_request(1000, .5), 503);
}

TEST(Blend, ScaleOfWeightsDoesNotMatter) {
  EXPECT_EQ(sets_of(twice_normalised({3, 7}, 200)), sets_of(twice_normalised({.3, .7}, 200)));
}

// Asked out of order and across blocks, every sample is the one of the plain loop.
TEST(Blend, AnyPlaceEqualsTheWholeWalk) {
  const std::vector<double> w{.45, .35, .2};
  const Blend blend = greedy(w, 5000);
  std::vector<int64_t> taken(3, 0);
  for (int64_t i = 0; i < 5000; ++i) {
    const Blend::Place place = blend.at(i);
    size_t best = 0;
    const auto behind = [&](size_t d) {
      return w[d] * static_cast<double>(std::max<int64_t>(i, 1)) - static_cast<double>(taken[d]);
    };
    for (size_t d = 1; d < 3; ++d) best = behind(d) > behind(best) ? d : best;
    ASSERT_EQ(place.set, static_cast<int64_t>(best)) << i;
    ASSERT_EQ(place.sample, taken[best]++) << i;
  }
  EXPECT_EQ(blend.taken(5000), taken);
}

TEST(Blend, ExhaustiveDrawsEverySampleOnce) {
  const Blend blend = Blend::exhaustive({5, 1, 10});
  EXPECT_EQ(blend.samples(), 16);
  EXPECT_EQ(blend.taken(16), (std::vector<int64_t>{5, 1, 10}));
}

}  // namespace
}  // namespace moetrain
