// Cases of leaves, reshape, cast, sums, split, concatenate and of the optimizer step.
#include "harness.h"
#include "ops/basic.h"
#include "ops/pad.h"
#include "ops/update.h"

namespace moetrain::test {

using namespace ops;

namespace {

OpCase reshape_case(const std::string& name, Shape from, Shape to) {
  return {name,       &kReshape, {{"shape", to}}, {normal(name, from)},
          {f32(to)}, {0},       {},              false};
}

}  // namespace

std::vector<OpCase> basic_cases() {
  std::vector<OpCase> cases{
      {"constant", &kConstant, {{"dtype", "f32"}, {"shape", Shape{4, 6}}, {"value", 2.5}}, {},
       {f32({4, 6})}},
      {"cast_up", &kCast, {{"dtype", "f32"}}, {normal("c", {2, 4}, DType::kBF16)}, {f32({2, 4})},
       {0}},
      {"cast_down", &kCast, {{"dtype", "bf16"}}, {normal("c", {2, 4})},
       {{DType::kBF16, {2, 4}}}, {0}},
      {"scale", &kScale, {{"factor", -1.25}}, {normal("s", {4, 2})}, {f32({4, 2})}, {0}, {}, false, 0,
       true},
      {"scale_scalar", &kScale, {{"factor", 0.3}}, {normal("s", {})}, {f32({})}, {0}},
      {"add", &kAdd, {}, {normal("a", {2, 3, 4}), normal("b", {2, 3, 4})}, {f32({2, 3, 4})}, {0},
       {}, false, 0, true},
      {"add_mixed", &kAdd, {}, {normal("a", {2, 3, 4}), normal("b", {2, 3, 4}, DType::kBF16)},
       {f32({2, 3, 4})}, {0}},
      {"add_n_mixed", &kAddN, {},
       {normal("a", {2, 2}, DType::kBF16), normal("b", {2, 2}), normal("c", {2, 2}, DType::kBF16)},
       {f32({2, 2})}, {0}},
      {"add_ragged", &kAdd, {}, {ragged("a", 2, 8, 6, 4), ragged("b", 2, 8, 6, 4)},
       {{DType::kF32, {2, 8, 4}, true}}, {0}},
      {"add_n", &kAddN, {},
       {normal("a", {2, 2}), normal("b", {2, 2}), normal("c", {2, 2})}, {f32({2, 2})}, {0}},
      {"split", &kSplit, {{"sizes", std::vector<int64_t>{3, 1, 2}}}, {normal("x", {2, 4, 6})},
       {f32({2, 4, 3}), f32({2, 4, 1}), f32({2, 4, 2})}, {0, 1, 2}},
      {"split_one_cotangent", &kSplit, {{"sizes", std::vector<int64_t>{3, 1}}},
       {normal("x", {2, 4})}, {f32({2, 3}), f32({2, 1})}, {1}},
      {"concat", &kConcat, {}, {normal("x", {2, 4, 2}), normal("y", {2, 4, 3})},
       {f32({2, 4, 5})}, {0}},
      {"pad", &kPad, {{"by", int64_t{3}}}, {normal("x", {2, 4, 2})}, {f32({2, 4, 5})}, {0}},
      {"crop", &kCrop, {{"by", int64_t{2}}}, {normal("x", {2, 4, 6})}, {f32({2, 4, 4})}, {0}},
  };
  cases.push_back(reshape_case("reshape_heads", {2, 4, 6}, {2, 4, 2, 3}));
  cases.push_back(reshape_case("reshape_merge", {2, 4, 2, 3}, {8, 6}));
  cases.push_back(reshape_case("reshape_across", {2, 6, 4}, {2, 3, 8}));
  cases.push_back(reshape_case("reshape_ones", {4, 1}, {1, 2, 1, 2}));
  cases.push_back(reshape_case("reshape_odd", {4, 6}, {3, 8}));
  return cases;
}

std::vector<OpCase> update_cases() {
  const Attrs adam{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}};
  const Operand hyper = filled({4}, {0.01, 0.19, 0.0975, 0});
  auto adamw = [&](const std::string& name, double factor) {
    return OpCase{name, &kAdamw, adam,
                  {normal("p", {4, 6}), normal("m", {4, 6}), positive("v", {4, 6}),
                   normal("g", {4, 6}), filled({}, {factor}), hyper},
                  {f32({4, 6}), f32({4, 6}), f32({4, 6})}};
  };
  auto adamw_copy = [&](const std::string& name, double factor) {
    OpCase c = adamw(name, factor);
    c.attrs.set("copy", int64_t{1});
    c.operands.push_back(normal("copy", {4, 6}, DType::kBF16));
    c.results.push_back({DType::kBF16, {4, 6}});
    return c;
  };
  return {
      {"accumulate", &kAccumulate, {}, {normal("a", {4, 2}), normal("x", {4, 2})}, {f32({4, 2})}},
      {"accumulate_bf16", &kAccumulate, {},
       {normal("a", {4, 2}), normal("x", {4, 2}, DType::kBF16)}, {f32({4, 2})}},
      {"accumulate_counts", &kAccumulate, {},
       {integers({4}, {1, 2, 3, 4000000000.0}, DType::kI64),
        integers({4}, {5, 0, 7, 4000000000.0}, DType::kI64)},
       {{DType::kI64, {4}}}},
      {"clear", &kClear, {}, {normal("a", {4, 2})}, {f32({4, 2})}},
      {"assign", &kAssign, {}, {normal("a", {4, 2}), normal("x", {4, 2})}, {f32({4, 2})}},
      {"assign_bf16", &kAssign, {}, {normal("a", {4, 2}, DType::kBF16), normal("x", {4, 2})},
       {{DType::kBF16, {4, 2}}}},
      {"sum_squares", &kSumSquares, {}, {normal("x", {4, 2, 6})}, {f32({})}},
      {"clip_factor", &kClipFactor, {{"clip", 1.0}}, {filled({}, {9.0})}, {f32({}), f32({})}},
      adamw("adamw", 0.5),
      adamw("adamw_refused", -1),
      adamw_copy("adamw_copy", 0.5),
      adamw_copy("adamw_copy_refused", -1),
      {"bias_update", &kBiasUpdate, {},
       {normal("b", {4}), integers({4}, {3, 9, 6, 6}, DType::kI64), filled({}, {0.001}),
        filled({}, {1})},
       {f32({4})}},
  };
}

}  // namespace moetrain::test
