// NumPy's shuffle, splits and blends against the field's published vectors.
#include "data/blend.h"

#include <gtest/gtest.h>

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

Ints sets_of(const BlendIndex& index) { return {index.set.begin(), index.set.end()}; }

BlendIndex blend_twice_normalised(std::vector<double> w, int64_t n) {
  return blend(normalized(normalized(w)), n);
}

TEST(Blend, GoldenVectors) {
  const BlendIndex a = blend(std::vector<double>{.5, .25, .25}, 8);
  EXPECT_EQ(sets_of(a), (Ints{0, 1, 2, 0, 0, 1, 2, 0}));
  EXPECT_EQ(a.sample, (std::vector<int64_t>{0, 0, 0, 1, 2, 1, 1, 3}));
  EXPECT_EQ(sets_of(blend(std::vector<double>{.5, .3125, .1875}, 16)),
            (Ints{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0}));
}

TEST(Blend, TiesThatTheLastBitDecides) {
  const std::vector<double> w{.7, .2, .1};
  const Ints twice{0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1}, once{0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1};
  EXPECT_EQ(sets_of(blend(w, 12)), twice);
  EXPECT_EQ(sets_of(blend(normalized(w), 12)), once);
  EXPECT_EQ(sets_of(blend_twice_normalised(w, 12)), twice);
}

TEST(Blend, ExtremeWeightsStayWithinOne) {
  for (int64_t n : {1, 2, 10, 1000, 2000}) {
    const BlendIndex index = blend_twice_normalised({.001, .999}, n);
    EXPECT_EQ(index.taken[0] + index.taken[1], n);
    EXPECT_NEAR(static_cast<double>(index.taken[0]), .001 * static_cast<double>(n), 1.0) << n;
    EXPECT_NEAR(static_cast<double>(index.taken[1]), .999 * static_cast<double>(n), 1.0) << n;
  }
  EXPECT_EQ(blend_request(2000, .001), 3);
  EXPECT_EQ(blend_request(1000, .5), 503);
}

TEST(Blend, ScaleOfWeightsDoesNotMatter) {
  EXPECT_EQ(sets_of(blend_twice_normalised({3, 7}, 200)),
            sets_of(blend_twice_normalised({.3, .7}, 200)));
}

TEST(Blend, ExhaustiveDrawsEverySampleOnce) {
  const BlendIndex index = blend_exhaustive(std::vector<int64_t>{5, 1, 10});
  EXPECT_EQ(index.taken, (std::vector<int64_t>{5, 1, 10}));
  EXPECT_EQ(index.set.size(), 16u);
}

}  // namespace
}  // namespace moetrain
