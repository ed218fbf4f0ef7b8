// Cases of the router, the balance loss, dispatch, combine and grouped products.
#include "harness.h"
#include "ops/experts.h"
#include "ops/route.h"

namespace moetrain::test {

using namespace ops;

namespace {

Attrs route_attrs(int64_t top_k, int64_t groups, int64_t top_groups, bool normalise,
                  int64_t valid_positions) {
  return {{"top_k", top_k}, {"groups", groups}, {"top_groups", top_groups},
          {"normalise", int64_t{normalise}}, {"scaling", 2.5},
          {"valid_positions", valid_positions}};
}

// Batch 2, 4 positions, 8 experts.
OpCase route_case(const std::string& name, const Attrs& attrs) {
  const int64_t k = attrs.integer("top_k");
  return {name, &kRoute, attrs,
          {normal("logits", {2, 4, 8}), normal("bias", {8}),
           integers({2, 4}, {0, 1, 2, 3, 0, 1, 2, 3})},
          {i32({2, 4, k}), f32({2, 4, k}), {DType::kI64, {8}}, f32({2, 8}), f32({2, 8})},
          {1, 4}, {1}};
}

OpCase route_grad_case(const std::string& name, bool with_mean) {
  OpCase c{name, &kRouteGrad, route_attrs(2, 2, 1, true, 3),
           {normal("dw", {2, 4, 2}), normal("logits", {2, 4, 8}),
            integers({2, 4, 2}, {0, 1, 2, 3, 4, 7, -1, -1, 1, 2, 5, 6, 0, 3, -1, -1}),
            integers({2, 4}, {0, 1, 2, 3, 0, 1, 2, 3})},
           {f32({2, 4, 8})}};
  if (with_mean) c.operands.push_back(normal("dmean", {2, 8}));
  return c;
}

// 8 tokens, top-2 of 4 experts; expert 2 stays idle, one token is not routed and one slot is empty.
Operand slots() {
  return integers({2, 4, 2}, {0, 1, 1, 3, -1, -1, 0, 3, 0, 1, 3, -1, 0, 3, 1, 3});
}

// The plan that dispatch makes of slots(): offsets, then source slots in expert order.
Operand plan() {
  return integers({5 + 16}, {0, 4, 8, 8, 13,                          //
                             0, 6, 8, 12, 1, 2, 9, 14, 3, 7, 10, 13, 15, -1, -1, -1});
}

constexpr int64_t kRows = 13;
const Attrs kExperts{{"experts", int64_t{4}}};

Operand rows(const std::string& tag, int64_t width) { return ragged(tag, 4, 16, kRows, width); }
Operand bf16(Operand operand) {
  operand.type.dtype = DType::kBF16;
  return operand;
}
Type rows_type(int64_t width) { return {DType::kF32, {4, 16, width}, true}; }

}  // namespace

std::vector<OpCase> expert_cases() {
  return {
      route_case("route", route_attrs(2, 1, 1, true, 0)),
      route_case("route_groups", route_attrs(3, 4, 2, true, 0)),
      route_case("route_raw_weights", route_attrs(2, 2, 1, false, 0)),
      route_case("route_valid_positions", route_attrs(2, 2, 1, true, 3)),
      route_grad_case("route_grad", false),
      route_grad_case("route_grad_with_mean", true),
      {"balance_loss", &kBalanceLoss, {{"coefficient", 0.3}},
       {positive("plain", {2, 8}), positive("mean", {2, 8}), filled({}, {0.5})}, {f32({})}, {0},
       {0, 2}, true},
      {"balance_loss_grad", &kBalanceLossGrad, {{"coefficient", 0.3}},
       {positive("plain", {2, 8}), filled({}, {0.5})}, {f32({2, 8})}},
      {"dispatch", &kDispatch, kExperts, {normal("x", {2, 4, 6}), slots()},
       {rows_type(6), i32({21})}, {0}, {}, false, 0, true},
      {"dispatch_grad", &kDispatchGrad, kExperts, {rows("dr", 6), plan(), slots()},
       {f32({2, 4, 6})}},
      {"combine", &kCombine, kExperts,
       {rows("y", 6), plan(), normal("w", {2, 4, 2}), slots()}, {f32({2, 4, 6})}, {0}, {}, false, 0,
       true},
      {"combine_widening", &kCombine, {{"experts", int64_t{4}}, {"dtype", "f32"}},
       {bf16(rows("y", 6)), plan(), normal("w", {2, 4, 2}), slots()}, {f32({2, 4, 6})}, {0}},
      {"combine_grad_wide_dy", &kCombineGrad, kExperts,
       {normal("dy", {2, 4, 6}), plan(), normal("w", {2, 4, 2}), slots(), bf16(rows("y", 6))},
       {bf16(rows("y", 6)).type, f32({2, 4, 2})}},
      {"combine_grad", &kCombineGrad, kExperts,
       {normal("dy", {2, 4, 6}), plan(), normal("w", {2, 4, 2}), slots(), rows("y", 6)},
       {rows_type(6), f32({2, 4, 2})}},
      {"grouped_matmul", &kGroupedMatmul, {}, {rows("x", 6), normal("w", {4, 2, 6}), plan()},
       {rows_type(2)}, {0}, {}, false, 2.0 * 16 * 6 * 2, true},
      {"grouped_matmul_dx", &kGroupedMatmulDx, {}, {rows("dy", 2), normal("w", {4, 2, 6}), plan()},
       {rows_type(6)}, {}, {}, false, 2.0 * 16 * 6 * 2},
      {"grouped_matmul_dw", &kGroupedMatmulDw, {}, {rows("dy", 2), rows("x", 6), plan()},
       {f32({4, 2, 6})}, {}, {}, false, 2.0 * 16 * 6 * 2},
      {"grouped_matmul_dw_into", &kGroupedMatmulDw, {{"accumulate", int64_t{1}}},
       {rows("dy", 2), rows("x", 6), plan(), normal("acc", {4, 2, 6})}, {f32({4, 2, 6})}, {}, {},
       false, 2.0 * 16 * 6 * 2},
  };
}

}  // namespace moetrain::test
