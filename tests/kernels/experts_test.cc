// Router, dispatch and combine against the references, with unrouted tokens and idle experts.
#include "ops/experts.h"

#include "kernels/harness.h"
#include "ops/local.h"
#include "ops/route.h"

namespace moetrain::cpu::testing {
namespace {

using Experts = EachTarget;

struct Routing {
  int64_t b, s, experts, top_k, groups, top_groups, normalise, valid;
};

const Routing kRoutings[] = {{2, 11, 8, 2, 1, 1, 1, 0},   {2, 70, 16, 4, 4, 2, 1, 0},
                             {1, 9, 32, 8, 1, 1, 0, 6},   {3, 5, 6, 6, 3, 3, 1, 4},
                             {1, 140, 40, 3, 8, 2, 0, 0}, {1, 4, 4, 1, 4, 2, 1, 0}};

Attrs attrs_of(const Routing& r) {
  return {{"top_k", r.top_k},         {"groups", r.groups}, {"top_groups", r.top_groups},
          {"normalise", r.normalise}, {"scaling", 2.5},     {"valid_positions", r.valid}};
}

std::vector<int32_t> positions(const Routing& r) {
  std::vector<int32_t> pos;
  for (int64_t i = 0; i < r.b * r.s; ++i) pos.push_back(static_cast<int32_t>(i % r.s));
  return pos;
}

Case route_case(const Routing& r) {
  Case c(ops::kRoute, attrs_of(r));
  c.normal(DType::kF32, {r.b, r.s, r.experts}, 2)
      .normal(DType::kF32, {r.experts}, 0.2, -0.3)
      .integers({r.b, r.s}, positions(r));
  return c;
}

TEST_P(Experts, Route) {
  for (const Routing& r : kRoutings) {
    const Case c = route_case(r);
    c.check({Bound{0}, Bound{1e-6}, Bound{0}, Bound{0}, Bound{1e-6}});
    for (bool balance : {false, true}) {
      Case grad(ops::kRouteGrad, attrs_of(r));
      grad.normal(DType::kF32, {r.b, r.s, r.top_k})
          .normal(DType::kF32, {r.b, r.s, r.experts}, 2)
          .result_of(c, 0, DType::kI32)
          .integers({r.b, r.s}, positions(r));
      if (balance) grad.normal(DType::kF32, {r.b, r.experts});
      grad.check({Bound{3e-6}});
    }
  }
}

TEST_P(Experts, DispatchAndCombine) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    for (const Routing& r : kRoutings) {
      const int64_t d = 21;
      const Case routed = route_case(r);
      int64_t rows = 0;
      const auto chosen = routed.reference(false);
      for (double e : chosen[0]) rows += e >= 0;
      const Attrs attrs{{"experts", r.experts}};
      Case dispatch(ops::kDispatch, attrs);
      dispatch.normal(t, {r.b, r.s, d}).result_of(routed, 0, DType::kI32).rows(rows);
      dispatch.check({Bound{0}, Bound{0}});
      const int64_t slots = r.b * r.s * r.top_k;
      Case(ops::kDispatchGrad, attrs)
          .ragged(t, r.experts, slots, rows, d)
          .result_of(dispatch, 1, DType::kI32)
          .result_of(routed, 0, DType::kI32)
          .check({Bound{}});
      Case(ops::kCombine, attrs)
          .ragged(t, r.experts, slots, rows, d)
          .result_of(dispatch, 1, DType::kI32)
          .result_of(routed, 1, DType::kF32)
          .result_of(routed, 0, DType::kI32)
          .check({Bound{}});
      // Into and out of a float32 residual stream.
      Case(ops::kCombine, {{"experts", r.experts}, {"dtype", std::string("f32")}})
          .ragged(t, r.experts, slots, rows, d)
          .result_of(dispatch, 1, DType::kI32)
          .result_of(routed, 1, DType::kF32)
          .result_of(routed, 0, DType::kI32)
          .check({Bound{}});
      for (DType dy : {t, DType::kF32}) {
        Case(ops::kCombineGrad, attrs)
            .normal(dy, {r.b, r.s, d})
            .result_of(dispatch, 1, DType::kI32)
            .result_of(routed, 1, DType::kF32)
            .result_of(routed, 0, DType::kI32)
            .ragged(t, r.experts, slots, rows, d)
            .rows(rows)
            .check({Bound{}, Bound{}});
      }
    }
  }
}

TEST_P(Experts, GatherRows) {
  // Three bins of two, none and three rows from the slots of four tokens with two slots each.
  const std::vector<int32_t> plan{0, 2, 2, 5, 1, 6, 0, 3, 4, -1, -1, -1};
  for (DType t : {DType::kF32, DType::kBF16}) {
    Case(ops::kGatherRows, {{"experts", int64_t{3}},
                            {"which", int64_t{0}},
                            {"capacity", int64_t{8}},
                            {"top_k", int64_t{2}}})
        .normal(t, {1, 4, 13})
        .integers({12}, plan)
        .integers({1}, {5})
        .rows(5)
        .copies()
        .check({Bound{0}});
  }
}

// So many rows that they are written past the caches; 5 cache lines each, so that a tail is left.
TEST_P(Experts, CombineGradOfManyRows) {
  const Routing r{4, 1024, 8, 4, 1, 1, 1, 0};
  const Case routed = route_case(r);
  const int64_t slots = r.b * r.s * r.top_k;
  for (DType t : {DType::kF32, DType::kBF16}) {
    const int64_t d = t == DType::kF32 ? 80 : 160;
    const Attrs attrs{{"experts", r.experts}};
    Case dispatch(ops::kDispatch, attrs);
    dispatch.normal(t, {r.b, r.s, d}).result_of(routed, 0, DType::kI32).rows(slots);
    for (DType dy : {t, DType::kF32}) {
      Case(ops::kCombineGrad, attrs)
          .normal(dy, {r.b, r.s, d})
          .result_of(dispatch, 1, DType::kI32)
          .result_of(routed, 1, DType::kF32)
          .result_of(routed, 0, DType::kI32)
          .ragged(t, r.experts, slots, slots, d)
          .rows(slots)
          .check({Bound{}, Bound{}});
      if (t == DType::kF32) break;
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Experts);

}  // namespace
}  // namespace moetrain::cpu::testing
