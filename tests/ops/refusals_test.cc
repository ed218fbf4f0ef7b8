// Wrong shapes, dtypes and operand counts are refused with the operator and the types in the message.
#include <gtest/gtest.h>

#include "harness.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/swiglu.h"
#include "ops/update.h"
#include "ops/vocab_loss.h"

namespace moetrain::test {
namespace {

using namespace ops;

std::string refusal(const OpDef& op, const Attrs& attrs, const std::vector<Type>& inputs) {
  try {
    op.infer(attrs, inputs);
  } catch (const InternalError& e) {
    return e.what();
  }
  return "accepted";
}

void expect_refused(const OpDef& op, const Attrs& attrs, const std::vector<Type>& inputs,
                    const std::string& words) {
  const std::string message = refusal(op, attrs, inputs);
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(Refusals, NameTheOperatorAndTheTypes) {
  const Type bf16{DType::kBF16, {4, 6}};
  const Type rows{DType::kF32, {2, 8, 4}, true};
  expect_refused(kMatmul, {}, {f32({2, 4, 6}), f32({8, 5})}, "matmul: x f32[2, 4, 6], w f32[8, 5]");
  expect_refused(kMatmul, {}, {f32({4, 6}), bf16}, "matmul: x f32[4, 6], w bf16[4, 6]");
  expect_refused(kMatmul, {}, {f32({4, 6})}, "matmul: 1 operands, 2 are needed");
  expect_refused(kMatmul, {}, {rows, f32({3, 4})}, "matmul: x f32ragged[2, 8, 4]");
  expect_refused(kMatmulDw, {}, {f32({2, 4}), f32({3, 4})}, "matmul_dw: dy f32[2, 4]");
  expect_refused(kMatmulDw, {}, {f32({2, 4}), f32({2, 4}), f32({4, 4})}, "accumulate=1");
  expect_refused(kMatmulDw, {{"accumulate", int64_t{1}}},
                 {f32({2, 4}), f32({2, 4}), f32({4, 5})}, "acc f32[4, 5] for f32[4, 4]");
  expect_refused(kReshape, {{"shape", Shape{5}}}, {f32({2, 3})}, "reshape: f32[2, 3] to [5]");
  expect_refused(kSplit, {{"sizes", std::vector<int64_t>{1, 1}}}, {f32({2, 3})}, "sizes sum to 2");
  expect_refused(kConcat, {}, {f32({2, 3}), f32({3, 3})}, "concat of f32[2, 3] and f32[3, 3]");
  expect_refused(kAdd, {}, {f32({2}), f32({3})}, "a sum of f32[2] and f32[3]");
  expect_refused(kCast, {{"dtype", "f16"}}, {f32({2})}, "no dtype 'f16'");
  expect_refused(kRmsNorm, {{"eps", 1e-6}}, {f32({2, 3}), f32({4})}, "gain f32[4]");
  expect_refused(kRmsNorm, {}, {f32({2, 3}), f32({3})}, "no attribute 'eps'");
  expect_refused(kSwiglu, {}, {f32({2}), {DType::kBF16, {2}}}, "up bf16[2]");
  expect_refused(kEmbedding, {}, {f32({4, 2}), f32({2, 2})}, "ids f32[2, 2]");
  expect_refused(kVocabLoss, {},
                 {f32({2, 3, 4}), f32({8, 4}), i32({2, 4}), f32({2, 3}), f32({})},
                 "labels i32[2, 4]");
  expect_refused(kAttention, {{"nope", int64_t{3}}, {"scale", 1.0}},
                 {f32({1, 2, 2, 4}), f32({1, 2, 2, 5}), f32({1, 2, 2}), i32({1, 2}), i32({1, 2}),
                  i32({1, 2})},
                 "attention with nope 3");
  expect_refused(kGroupedMatmul, {}, {rows, f32({3, 5, 4}), i32({19})}, "w f32[3, 5, 4]");
  expect_refused(kGroupedMatmul, {}, {f32({2, 8, 4}), f32({2, 5, 4}), i32({19})},
                 "rows f32[2, 8, 4]");
  expect_refused(kCombine, {{"experts", int64_t{3}}},
                 {rows, i32({11}), f32({2, 2, 2}), i32({2, 2, 2})}, "of 3 experts");
  expect_refused(kAccumulate, {}, {f32({2}), {DType::kI64, {2}}}, "x i64[2]");
}

TEST(AddN, ChainsLongSums) {
  Graph g;
  std::vector<Value> terms;
  std::map<std::string, HostTensor> feeds;
  for (int i = 0; i < 23; ++i) {
    terms.push_back(input(g, cat("x", i), DType::kF32, {1}));
    feeds[cat("x", i)] = to_host(filled({1}, {static_cast<double>(i)}));
  }
  g.mark_output("sum", add_n(g, terms));
  EXPECT_EQ(values_of(interpret(g, feeds)["sum"])[0], 253);
}

// Rounding the parts of a pending sum is not rounding the sum.
TEST(Rules, NarrowingTakesNoPartialSum) {
  auto rule = [](const OpDef& op, const Attrs& attrs, std::vector<Type> types) {
    return op.rule(attrs, types);
  };
  const Type wide = f32({2}), narrow{DType::kBF16, {2}};
  EXPECT_EQ(rule(kCast, {{"dtype", "bf16"}}, {wide}), "*->*");
  EXPECT_EQ(rule(kCast, {{"dtype", "f32"}}, {narrow}), "*->*; linear 0");
  EXPECT_EQ(rule(kAssign, {}, {narrow, wide}), "*,*->*");
  EXPECT_EQ(rule(kAssign, {}, {wide, wide}), "*,*->*; linear 01");
}

TEST(Reshape, RulesNameTheRunsThatSplitTogether) {
  auto rule = [](Shape from, Shape to) {
    const std::vector<Type> types{f32(std::move(from))};
    return kReshape.rule({{"shape", std::move(to)}}, types);
  };
  EXPECT_EQ(rule({2, 4, 6}, {2, 4, 2, 3}), "ab(cd)->abcd; linear 0");
  EXPECT_EQ(rule({2, 4, 2, 3}, {2, 4, 6}), "abcd->ab(cd); linear 0");
  EXPECT_EQ(rule({2, 6, 4}, {2, 3, 8}), "a(bc)d->ab(cd); linear 0");
  EXPECT_EQ(rule({4, 6}, {3, 8}), "ab->cd; whole abcd; linear 0");
  EXPECT_EQ(rule({4, 1}, {4}), "ab->a; whole b; linear 0");
}

}  // namespace
}  // namespace moetrain::test
