// The optimizer ops against the written formulas, and their refusal to act on bad numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness.h"
#include "ops/basic.h"
#include "ops/update.h"

namespace moetrain::test {
namespace {

using namespace ops;
using Numbers = std::vector<double>;

Numbers clip(double norm2, double limit) {
  const auto r = run(kClipFactor, {{"clip", limit}}, {filled({}, {norm2})});
  return {r[0].values[0], r[1].values[0]};
}

TEST(ClipFactor, FollowsTheFormula) {
  EXPECT_EQ(clip(16, 1.0), (Numbers{4, 1.0 / (4 + 1e-6)}));
  EXPECT_EQ(clip(0.25, 1.0), (Numbers{0.5, 1.0}));
  EXPECT_EQ(clip(1e6, 0.0), (Numbers{1000, 1.0}));
  EXPECT_EQ(clip(0, 1.0), (Numbers{0, 1.0}));
}

TEST(ClipFactor, RefusesNumbersThatAreNone) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(clip(inf, 1.0)[1], -1);
  EXPECT_EQ(clip(std::nan(""), 1.0)[1], -1);
  EXPECT_EQ(clip(inf, 0.0)[1], -1);
}

const Attrs kAdam{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}};

Numbers adamw(double p, double m, double v, double g, double factor, Numbers hyper) {
  const auto r = run(kAdamw, kAdam,
                     {filled({1}, {p}), filled({1}, {m}), filled({1}, {v}), filled({1}, {g}),
                      filled({}, {factor}), filled({4}, std::move(hyper))});
  return {r[0].values[0], r[1].values[0], r[2].values[0]};
}

// The first step moves by lr in the direction of the gradient, whatever its size, plus the decay.
TEST(Adamw, FirstStepMovesByTheLearningRate) {
  const double lr = 0.01;
  const Numbers r = adamw(2, 0, 0, 5, 1, {lr, 0.1, 0.05, 0});
  EXPECT_NEAR(r[0], 2 - lr * 0.1 * 2 - lr, 1e-10);
  EXPECT_NEAR(r[1], 0.5, 1e-15);
  EXPECT_NEAR(r[2], 0.05 * 25, 1e-14);
}

TEST(Adamw, ScalesTheGradientByTheFactor) {
  const Numbers hyper{0.01, 0.271, 0.1426, 0};
  EXPECT_EQ(adamw(2, 0.3, 0.2, 5, 0.25, hyper), adamw(2, 0.3, 0.2, 1.25, 1, hyper));
}

TEST(Adamw, DecaysAndCoastsWithoutGradient) {
  const double lr = 0.01, m = 0.9 * 0.3, v = 0.95 * 0.2;
  const Numbers r = adamw(2, 0.3, 0.2, 0, 1, {lr, 0.271, 0.1426, 0});
  EXPECT_NEAR(r[0], 2 - lr * 0.1 * 2 - lr * (m / 0.271) / (std::sqrt(v / 0.1426) + 1e-8), 1e-12);
}

TEST(Adamw, RefusedStepChangesNothing) {
  const double nan = std::nan("");
  EXPECT_EQ(adamw(2, 0.3, 0.2, nan, -1, {0.01, 0.1, 0.05, 0}), (Numbers{2, 0.3, 0.2}));
  EXPECT_EQ(adamw(2, 0.3, 0.2, 1, nan, {0.01, 0.1, 0.05, 0}), (Numbers{2, 0.3, 0.2}));
}

Numbers bias(const Numbers& load, double factor) {
  const int64_t n = static_cast<int64_t>(load.size());
  return run(kBiasUpdate, {},
             {filled({n}, Numbers(n, 0.0)), integers({n}, load, DType::kI64),
              filled({}, {0.001}), filled({}, {factor})})[0].values;
}

// The mean (5 of 3 experts: 5/3) is compared exactly, also beyond 2^53.
TEST(BiasUpdate, ComparesWithTheExactMean) {
  EXPECT_EQ(bias({1, 2, 2}, 1), (Numbers{0.001, -0.001, -0.001}));
  EXPECT_EQ(bias({4, 4, 4}, 1), (Numbers{0, 0, 0}));
  EXPECT_EQ(bias({9, 3, 6}, 0), (Numbers{-0.001, 0.001, 0}));
  EXPECT_EQ(bias({9, 3, 6}, -1), (Numbers{0, 0, 0}));
}

TEST(Accumulate, AddsIntegersExactly) {
  HostTensor a = make_host_tensor(DType::kI64, {1}), b = a, c = a;
  a.view().as<int64_t>()[0] = (int64_t{1} << 53) + 1;
  b.view().as<int64_t>()[0] = 2;
  const std::vector<Tensor> in{a.view(), b.view()};
  std::vector<Tensor> out{c.view()};
  kAccumulate.reference({}, in, out);
  EXPECT_EQ(c.view().as<int64_t>()[0], (int64_t{1} << 53) + 3);
}

// In place means in place: an output that is its operand's memory gives the same.
TEST(Update, WorksInTheOperandsMemory) {
  const Operand p = normal("p", {6}), m = normal("m", {6}), v = positive("v", {6});
  const Operand g = normal("g", {6}), factor = filled({}, {0.5});
  const Operand hyper = filled({4}, {0.01, 0.1, 0.05, 0});
  const auto apart = run(kAdamw, kAdam, {p, m, v, g, factor, hyper});
  std::vector<HostTensor> hosts;
  for (const Operand* o : {&p, &m, &v, &g, &factor, &hyper}) hosts.push_back(to_host(*o));
  std::vector<Tensor> in;
  for (HostTensor& h : hosts) in.push_back(h.view());
  std::vector<Tensor> out(in.begin(), in.begin() + 3);
  kAdamw.reference(kAdam, in, out);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(values_of(hosts[i]), apart[i].values) << i;
}

// A renamed state is still the state: updates through the new shape arrive, reads of the old value by
// a later rename change nothing.
TEST(Update, ReachesAStateThroughAReshape) {
  Graph g;
  const Value s = state(g, "s", DType::kF32, {2, 2});
  const Value x = input(g, "x", DType::kF32, {4});
  g.add(kAccumulate, {reshape(g, s, {4}), x});
  g.mark_output("old", reshape(g, s, {4, 1}));
  auto out = interpret(g, {{"s", to_host(filled({2, 2}, {1, 2, 3, 4}))},
                           {"x", to_host(filled({4}, {10, 20, 30, 40}))}});
  EXPECT_EQ(values_of(out["old"]), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(values_of(out["state:s"]), (Numbers{11, 22, 33, 44}));
  EXPECT_EQ(out["state:s"].shape, (Shape{2, 2}));
}

TEST(Update, AliasesNameTheOverwrittenOperand) {
  EXPECT_EQ(kAdamw.alias(kAdam, 2), 2);
  EXPECT_EQ(kAccumulate.alias({}, 0), 0);
  EXPECT_EQ(kClear.alias({}, 0), 0);
  EXPECT_EQ(kAssign.alias({}, 0), 0);
  EXPECT_EQ(kBiasUpdate.alias({}, 0), 0);
}

}  // namespace
}  // namespace moetrain::test
