// Several products of one input as one launch: against the reference, and bit for bit against the
// kernels they replace.
#include "ops/projections.h"

#include "kernels/harness.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/rows.h"
#include "ops/swiglu.h"

namespace moetrain::cpu::testing {
namespace {

using Projections = EachTarget;
using Values = std::vector<std::vector<double>>;

struct Size {
  int64_t m, k;
  std::vector<int64_t> n;
};

// No multiples of anything, one weight much narrower than the others, rows few enough to read the
// weights where they stand, k of several blocks (256 packed words, or 2048), more weights than meet
// in one block, enough rows to be cut into ranges and pieces.
const Size kSizes[] = {{1, 1, {1, 1}},        {6, 32, {64, 64}},   {7, 33, {65, 1}},
                       {13, 5, {17, 130, 3}}, {33, 70, {16, 9}},   {2, 4200, {3, 5}},
                       {103, 600, {70, 9}},   {8, 64, {96, 32}},   {16, 32, {64, 32, 32}},
                       {48, 32, {32, 160}},   {700, 12, {150, 2}}, {20, 16, {1, 2, 3, 4, 5, 6}},
                       {41, 10, {300, 300}}};
// For two weights alike; k of more words than two whole panels may take.
const Size kGated[] = {{1, 1, {1}},     {6, 32, {64}},    {7, 33, {65}},   {33, 70, {130}},
                       {8, 64, {96}},   {48, 32, {32}},   {5, 2200, {70}}, {20, 1300, {64}},
                       {7, 4300, {40}}, {700, 12, {150}}, {19, 600, {33}}};

struct Group {
  std::vector<int32_t> counts;
  int64_t k;
  std::vector<int64_t> n;
};

const Group kGroups[] = {{{5, 0, 13, 1}, 9, {17, 1}},     {{0, 0, 0}, 8, {8, 8}},
                         {{0, 40, 7}, 34, {66, 3}},       {{3, 8, 0, 16, 49}, 32, {64, 64}},
                         {{300, 3, 520}, 12, {136, 136}}, {{9, 100}, 530, {70, 20, 5}}};

/// Offsets of the experts, then the slot of every row: all over the tokens, some of them twice.
std::vector<int32_t> plan_of(const std::vector<int32_t>& counts, int64_t slots) {
  std::vector<int32_t> plan{0};
  for (int32_t c : counts) plan.push_back(plan.back() + c);
  const int64_t rows = plan.back();
  for (int64_t r = 0; r < rows; ++r) plan.push_back(static_cast<int32_t>((r * 7 + 3) % slots));
  return plan;
}

int64_t rows_of(const Group& g) {
  int64_t rows = 0;
  for (int32_t c : g.counts) rows += c;
  return rows;
}

Attrs attrs_of(int64_t count, bool grouped) {
  Attrs attrs{{"count", count}};
  if (grouped) attrs.set("grouped", int64_t{1});
  return attrs;
}

std::vector<Bound> bounds_of(size_t count, int64_t terms) {
  return std::vector<Bound>(count, sum_bound(terms));
}

/// Bounds of silu(gate) up: errors of two sums meet; bf16 has rounded ones and a quick sigmoid.
Bound gated_bound(DType t, int64_t terms) {
  return {5 * sum_bound(terms).relative + (t == DType::kBF16 ? 0x1p-6 : 4e-6), true};
}

void expect_same(const Values& got, size_t first, const Values& expected, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(got[first + i], expected[i]) << what << ", output " << i;
}

/// x[m, k] and weights, or the rows and weights of a group, for the op with these attributes.
Case forward(DType t, const Size& s, Attrs attrs) {
  Case c(ops::kProjections, std::move(attrs));
  c.normal(t, {s.m, s.k});
  for (int64_t n : s.n) c.normal(t, {n, s.k});
  return c;
}
Case forward(DType t, const Group& g, Attrs attrs) {
  const int64_t e = static_cast<int64_t>(g.counts.size()), rows = rows_of(g);
  Case c(ops::kProjections, std::move(attrs));
  c.ragged(t, e, rows + 5, rows, g.k);
  for (int64_t n : g.n) c.normal(t, {e, n, g.k});
  const std::vector<int32_t> plan = plan_of(g.counts, rows + 1);
  c.integers({static_cast<int64_t>(plan.size())}, plan).rows(rows);
  return c;
}

TEST_P(Projections, ForwardHasTheBitsOfProducts) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      const Case all = forward(t, s, attrs_of(s.n.size(), false));
      all.check(bounds_of(s.n.size(), s.k));
      const Values got = all.kernel_values(1);
      for (size_t i = 0; i < s.n.size(); ++i) {
        const Case one = Case(ops::kMatmul, {}).operand_of(all, 0).operand_of(all, 1 + i);
        expect_same(got, i, one.kernel_values(1), "dense");
      }
    }
    for (const Group& g : kGroups) {
      const Case all = forward(t, g, attrs_of(g.n.size(), true));
      all.check(bounds_of(g.n.size(), g.k));
      const Values got = all.kernel_values(1);
      for (size_t i = 0; i < g.n.size(); ++i) {
        const Case one = Case(ops::kGroupedMatmul, {})
                             .operand_of(all, 0)
                             .operand_of(all, 1 + i)
                             .operand_of(all, 1 + g.n.size())
                             .rows(rows_of(g));
        expect_same(got, i, one.kernel_values(1), "grouped");
      }
    }
  }
}

TEST_P(Projections, ForwardWithFloatResultOfBf16) {
  Attrs attrs = attrs_of(2, false);
  attrs.set("dtype", std::string("f32"));
  forward(DType::kBF16, {7, 34, {70, 3}}, attrs).check(bounds_of(2, 34));
}

template <class Shapes>
void check_activation(DType t, const Shapes& shapes, bool grouped) {
  Attrs attrs = attrs_of(2, grouped);
  const Case apart = forward(t, shapes, attrs);
  attrs.set("act", std::string("swiglu"));
  const Case fused = forward(t, shapes, attrs);
  fused.check({sum_bound(shapes.k), sum_bound(shapes.k), gated_bound(t, shapes.k)});
  const Values got = fused.kernel_values(1);
  expect_same(got, 0, apart.kernel_values(1), "gate and up");
  Case act(ops::kSwiglu, {});
  act.kernel_result_of(apart, 0).kernel_result_of(apart, 1).rows(got[2].size() / shapes.n[0]);
  expect_same(got, 2, act.kernel_values(1), "hidden");
  attrs.set("keep", int64_t{0});
  const Case alone = forward(t, shapes, attrs);
  alone.check({gated_bound(t, shapes.k)});
  expect_same(alone.kernel_values(1), 0, {got[2]}, "hidden alone");
}

TEST_P(Projections, ActivationHasTheBitsOfKernelsApart) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (Size s : kGated) {
      s.n.push_back(s.n[0]);
      check_activation(t, s, false);
    }
    for (Group g : kGroups) {
      g.n = {g.n[0], g.n[0]};
      check_activation(t, g, true);
    }
  }
}

TEST_P(Projections, InputGradientIsTheSumOfAll) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Size& s : kSizes) {
      Case c(ops::kProjectionsDx, attrs_of(s.n.size(), false));
      int64_t terms = 0;
      for (int64_t n : s.n) c.normal(t, {s.m, n}), terms += n;
      for (int64_t n : s.n) c.normal(t, {n, s.k});
      c.check(bounds_of(1, terms));
    }
    for (const Size& s : {Size{5, 9, {700, 30, 1, 900}}, Size{70, 65, {4100, 7}}}) {
      Case c(ops::kProjectionsDx, attrs_of(s.n.size(), false));
      for (int64_t n : s.n) c.normal(t, {s.m, n});
      for (int64_t n : s.n) c.normal(t, {n, s.k});
      c.check(bounds_of(1, 4200));
    }
    for (const Group& g : kGroups) {
      const int64_t e = static_cast<int64_t>(g.counts.size()), rows = rows_of(g);
      Case c(ops::kProjectionsDx, attrs_of(g.n.size(), true));
      int64_t terms = 0;
      for (int64_t n : g.n) c.ragged(t, e, rows + 5, rows, n), terms += n;
      for (int64_t n : g.n) c.normal(t, {e, n, g.k});
      const std::vector<int32_t> plan = plan_of(g.counts, rows + 1);
      c.integers({static_cast<int64_t>(plan.size())}, plan).rows(rows);
      c.check(bounds_of(1, terms));
    }
  }
}

TEST_P(Projections, WeightGradientsHaveTheBitsOfProducts) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (bool accumulate : {false, true}) {
      for (const Size& s : kSizes) {
        Attrs attrs = attrs_of(s.n.size(), false), own;
        if (accumulate) attrs.set("accumulate", int64_t{1}), own.set("accumulate", int64_t{1});
        Case all(ops::kProjectionsDw, attrs);
        for (int64_t n : s.n) all.normal(t, {s.m, n});
        all.normal(t, {s.m, s.k});
        for (int64_t n : s.n)
          if (accumulate) all.normal(DType::kF32, {n, s.k});
        all.check(bounds_of(s.n.size(), s.m));
        const Values got = all.kernel_values(1);
        for (size_t i = 0; i < s.n.size(); ++i) {
          Case one(ops::kMatmulDw, own);
          one.operand_of(all, i).operand_of(all, s.n.size());
          if (accumulate) one.operand_of(all, s.n.size() + 1 + i);
          expect_same(got, i, one.kernel_values(1), "dense");
        }
      }
      for (const Group& g : kGroups) {
        const int64_t e = static_cast<int64_t>(g.counts.size()), rows = rows_of(g);
        Attrs attrs = attrs_of(g.n.size(), true), own;
        if (accumulate) attrs.set("accumulate", int64_t{1}), own.set("accumulate", int64_t{1});
        Case all(ops::kProjectionsDw, attrs);
        for (int64_t n : g.n) all.ragged(t, e, rows + 5, rows, n);
        all.ragged(t, e, rows + 5, rows, g.k);
        const std::vector<int32_t> plan = plan_of(g.counts, rows + 1);
        all.integers({static_cast<int64_t>(plan.size())}, plan);
        for (int64_t n : g.n)
          if (accumulate) all.normal(DType::kF32, {e, n, g.k});
        all.check(bounds_of(g.n.size(), rows));
        const Values got = all.kernel_values(1);
        for (size_t i = 0; i < g.n.size(); ++i) {
          Case one(ops::kGroupedMatmulDw, own);
          one.operand_of(all, i).operand_of(all, g.n.size()).operand_of(all, g.n.size() + 1);
          if (accumulate) one.operand_of(all, g.n.size() + 2 + i);
          expect_same(got, i, one.kernel_values(1), "grouped");
        }
      }
    }
  }
}

TEST_P(Projections, ActivationGradient) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    const double sigmoid = t == DType::kBF16 ? 2e-3 : 1e-5;
    for (const Size& s : kSizes) {
      const Bound bound{4 * sum_bound(s.n[0]).relative + sigmoid, true};
      Case(ops::kMatmulDxSwiglu, {})
          .normal(t, {s.m, s.n[0]})
          .normal(t, {s.n[0], s.k})
          .normal(t, {s.m, s.k})
          .normal(t, {s.m, s.k})
          .check({bound, bound});
    }
    for (const Group& g : kGroups) {
      const int64_t e = static_cast<int64_t>(g.counts.size()), rows = rows_of(g);
      const Bound bound{4 * sum_bound(g.n[0]).relative + sigmoid, true};
      const std::vector<int32_t> plan = plan_of(g.counts, rows + 1);
      Case(ops::kMatmulDxSwiglu, {{"grouped", int64_t{1}}})
          .ragged(t, e, rows + 5, rows, g.n[0])
          .normal(t, {e, g.n[0], g.k})
          .ragged(t, e, rows + 5, rows, g.k)
          .ragged(t, e, rows + 5, rows, g.k)
          .integers({static_cast<int64_t>(plan.size())}, plan)
          .rows(rows)
          .check({bound, bound});
    }
    // In float the same product and activation apart have the same bits.
    const Case dx =
        Case(ops::kMatmulDx, {}).normal(DType::kF32, {33, 600}).normal(DType::kF32, {600, 70});
    Case fused(ops::kMatmulDxSwiglu, {}), apart(ops::kSwigluGrad, {});
    fused.operand_of(dx, 0).operand_of(dx, 1);
    fused.normal(DType::kF32, {33, 70}).normal(DType::kF32, {33, 70});
    apart.kernel_result_of(dx, 0).operand_of(fused, 2).operand_of(fused, 3);
    EXPECT_EQ(fused.kernel_values(1), apart.kernel_values(1));
  }
}

TEST_P(Projections, GatherHasTheBitsOfGatheredRows) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Group& g : kGroups) {
      const int64_t e = static_cast<int64_t>(g.counts.size()), rows = rows_of(g), tokens = 29;
      const std::vector<int32_t> plan = plan_of(g.counts, tokens * 3);
      const int64_t entries = static_cast<int64_t>(plan.size());
      Case first(
          ops::kGatherRows,
          {{"experts", e}, {"which", int64_t{0}}, {"capacity", rows + 5}, {"top_k", int64_t{3}}});
      first.normal(t, {1, tokens, g.k}).integers({entries}, plan);
      first.integers({1}, {static_cast<int32_t>(rows)}).rows(rows);

      for (bool act : {false, true}) {
        Attrs attrs = attrs_of(g.n.size(), true);
        if (act) attrs = attrs_of(2, true), attrs.set("act", std::string("swiglu"));
        Case from_rows(ops::kProjections, attrs);
        attrs.set("gather", int64_t{1}), attrs.set("which", int64_t{0});
        attrs.set("capacity", rows + 5), attrs.set("top_k", int64_t{3});
        Case gathered(ops::kProjections, attrs);
        from_rows.kernel_result_of(first, 0), gathered.operand_of(first, 0);
        for (size_t i = 0; i < (act ? 2 : g.n.size()); ++i) {
          gathered.normal(t, {e, act ? g.n[0] : g.n[i], g.k});
          from_rows.operand_of(gathered, 1 + i);
        }
        from_rows.operand_of(first, 1).rows(rows);
        gathered.operand_of(first, 1).operand_of(first, 2).rows(rows);
        gathered.check(act ? std::vector<Bound>{sum_bound(g.k), sum_bound(g.k), gated_bound(t, g.k)}
                           : bounds_of(g.n.size(), g.k));
        EXPECT_EQ(gathered.kernel_values(1), from_rows.kernel_values(1));
      }

      Attrs attrs = attrs_of(g.n.size(), true);
      Case from_rows(ops::kProjectionsDw, attrs);
      attrs.set("gather", int64_t{1}), attrs.set("top_k", int64_t{3});
      Case gathered(ops::kProjectionsDw, attrs);
      for (size_t i = 0; i < g.n.size(); ++i) {
        gathered.ragged(t, e, rows + 5, rows, g.n[i]);
        from_rows.operand_of(gathered, i);
      }
      from_rows.kernel_result_of(first, 0).operand_of(first, 1);
      gathered.operand_of(first, 0).operand_of(first, 1);
      gathered.check(bounds_of(g.n.size(), rows));
      EXPECT_EQ(gathered.kernel_values(1), from_rows.kernel_values(1));
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Projections);

}  // namespace
}  // namespace moetrain::cpu::testing
