// Dense and grouped matrix products against the reference on odd shapes, empty experts and in
// place.
#include "kernels/harness.h"
#include "ops/experts.h"
#include "ops/matmul.h"

namespace moetrain::cpu::testing {
namespace {

using Products = EachTarget;

struct Size {
  int64_t m, n, k;
};

// Tiles are 6 rows and 1 to 4 vectors; blocks of k have 512 (packed A) or 2048 words. The last row
// but one of sizes reads the second operand where it stands: tiles of 8 rows, whole vectors. The last
// row is long enough to be cut into ranges of rows, and these into pieces that share packed panels.
const Size kSizes[] = {{1, 1, 1},   {6, 64, 32},  {7, 65, 33},   {13, 17, 5},  {5, 130, 64},
                       {97, 48, 7}, {33, 16, 70}, {12, 200, 19}, {2, 3, 4200}, {103, 9, 600},
                       {1, 64, 32}, {8, 96, 64},  {9, 160, 16},  {17, 32, 48}, {48, 32, 32},
                       {700, 150, 12}, {601, 40, 9}};

TEST_P(Products, Forward) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      Case(ops::kMatmul, {}).normal(t, {s.m, s.k}).normal(t, {s.n, s.k}).check({sum_bound(s.k)});
    }
  }
}

TEST_P(Products, ForwardWithFloatResultOfBf16) {
  Case(ops::kMatmul, {{"dtype", std::string("f32")}})
      .normal(DType::kBF16, {2, 7, 34})
      .normal(DType::kBF16, {70, 34})
      .check({sum_bound(34)});
}

TEST_P(Products, InputGradient) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      Case(ops::kMatmulDx, {}).normal(t, {s.m, s.k}).normal(t, {s.k, s.n}).check({sum_bound(s.k)});
    }
  }
}

TEST_P(Products, WeightGradient) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      Case(ops::kMatmulDw, {}).normal(t, {s.k, s.m}).normal(t, {s.k, s.n}).check({sum_bound(s.k)});
    }
  }
}

TEST_P(Products, WeightGradientInPlace) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      Case(ops::kMatmulDw, {{"accumulate", int64_t{1}}})
          .normal(t, {s.k, s.m})
          .normal(t, {s.k, s.n})
          .normal(DType::kF32, {s.m, s.n})
          .check({sum_bound(s.k)});
    }
  }
}

/// A plan whose experts have the given numbers of rows; only the offsets matter here.
std::vector<int32_t> plan_of(const std::vector<int32_t>& counts) {
  std::vector<int32_t> offsets{0};
  for (int32_t c : counts) offsets.push_back(offsets.back() + c);
  return offsets;
}

struct Group {
  std::vector<int32_t> counts;
  int64_t n, k;
};

const Group kGroups[] = {{{5, 0, 13, 1}, 17, 9},
                         {{0, 0, 0}, 8, 8},
                         {{0, 40, 7}, 66, 34},
                         {{130}, 6, 3},
                         {{3, 8, 0, 16, 49}, 64, 32},
                         {{300, 3, 520}, 136, 12}};

TEST_P(Products, Grouped) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Group& g : kGroups) {
      const std::vector<int32_t> plan = plan_of(g.counts);
      const int64_t e = static_cast<int64_t>(g.counts.size()), rows = plan.back(), cap = rows + 5;
      Case(ops::kGroupedMatmul, {})
          .ragged(t, e, cap, rows, g.k)
          .normal(t, {e, g.n, g.k})
          .integers({e + 1}, plan)
          .rows(rows)
          .check({sum_bound(g.k)});
      Case(ops::kGroupedMatmulDx, {})
          .ragged(t, e, cap, rows, g.n)
          .normal(t, {e, g.n, g.k})
          .integers({e + 1}, plan)
          .rows(rows)
          .check({sum_bound(g.n)});
      Case(ops::kGroupedMatmulDw, {})
          .ragged(t, e, cap, rows, g.n)
          .ragged(t, e, cap, rows, g.k)
          .integers({e + 1}, plan)
          .check({sum_bound(rows)});
      Case(ops::kGroupedMatmulDw, {{"accumulate", int64_t{1}}})
          .ragged(t, e, cap, rows, g.n)
          .ragged(t, e, cap, rows, g.k)
          .integers({e + 1}, plan)
          .normal(DType::kF32, {e, g.n, g.k})
          .check({sum_bound(rows)});
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Products);

}  // namespace
}  // namespace moetrain::cpu::testing
