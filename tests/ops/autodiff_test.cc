// Reverse mode as a graph transformation: what is appended, in which order, and what is refused.
#include "ops/autodiff.h"

#include <gtest/gtest.h>

#include "harness.h"
#include "ops/basic.h"
#include "ops/matmul.h"
#include "ops/route.h"
#include "ops/swiglu.h"
#include "ops/vocab_loss.h"

namespace moetrain::test {
namespace {

using namespace ops;

struct Small {
  Graph g;
  Value x, w, head, loss;
};

// Loss of head(x + silu(w x) * (w x)): x is used three times, w twice.
Small small(double factor = 1) {
  Small m;
  Graph& g = m.g;
  m.x = state(g, "x", DType::kF32, {2, 3, 4});
  m.w = state(g, "w", DType::kF32, {4, 4});
  m.head = state(g, "head", DType::kF32, {5, 4});
  const Value labels = input(g, "labels", DType::kI32, {2, 3});
  const Value valid = input(g, "valid", DType::kF32, {2, 3});
  const Value count = input(g, "scale", DType::kF32, {});
  Value y;
  {
    Scope scope(g, "layers.3.", 3);
    const Value a = matmul(g, m.x, m.w, "gate"), b = matmul(g, m.x, m.w, "up");
    y = add(g, m.x, swiglu(g, a, b, "act"), "sum");
  }
  m.loss = vocab_loss(g, y, m.head, labels, valid, count, true, "loss").loss;
  if (factor != 1) m.loss = scale(g, m.loss, factor);
  return m;
}

TEST(Autodiff, AppendsTaggedAndNamedNodes) {
  Small m = small();
  const size_t forward = m.g.nodes.size();
  const std::vector<Value> grads = gradients(m.g, m.loss, {m.w});
  verify(m.g);
  ASSERT_TRUE(grads[0].valid());
  std::vector<std::string> names;
  for (size_t i = forward; i < m.g.nodes.size(); ++i) {
    const Node& node = m.g.nodes[i];
    EXPECT_EQ(node.tag.phase, Phase::kBackward) << node.name;
    ASSERT_GE(node.forward, 0) << node.name;
    EXPECT_EQ(node.tag.layer, m.g.nodes[node.forward].tag.layer) << node.name;
    EXPECT_EQ(node.name.rfind(m.g.nodes[node.forward].name + ".", 0), 0u) << node.name;
    names.push_back(node.name);
  }
  // dx of both products is not asked for and not made; neither is the seed, which the loss needs no
  // more once its own gradient outputs are used.
  EXPECT_EQ(names, (std::vector<std::string>{"layers.3.act.grad", "layers.3.up.dw",
                                             "layers.3.gate.dw", "w.grad_sum"}));
  EXPECT_EQ(m.g.tag, Tag{});
  EXPECT_EQ(m.g.scope, "");
  EXPECT_EQ(m.g.forward_of, -1);
}

TEST(Autodiff, IsDeterministic) {
  Small a = small(), b = small();
  gradients(a.g, a.loss, {a.x, a.w, a.head});
  gradients(b.g, b.loss, {b.x, b.w, b.head});
  EXPECT_EQ(print(a.g), print(b.g));
}

TEST(Autodiff, GivesNothingWhereNothingFlows) {
  Small m = small();
  const Value lonely = state(m.g, "lonely", DType::kF32, {2});
  const std::vector<Value> grads = gradients(m.g, m.loss, {lonely, m.head});
  EXPECT_FALSE(grads[0].valid());
  EXPECT_TRUE(grads[1].valid());
  EXPECT_EQ(m.g.node(grads[1]).op, &kVocabLoss);  // dw is an output of the forward node
}

TEST(Autodiff, RefusesAScaledVocabularyLoss) {
  Small m = small(0.5);
  try {
    gradients(m.g, m.loss, {m.w});
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("factor one"), std::string::npos) << e.what();
  }
}

TEST(Autodiff, RefusesALossThatIsNoScalar) {
  Small m = small();
  EXPECT_THROW(gradients(m.g, m.x, {m.x}), InternalError);
}

// Two losses added: each keeps the cotangent one. A factor on the balance loss is folded in.
TEST(Autodiff, AddsLossesAndFoldsConstantFactors) {
  Graph g;
  const Value plain = input(g, "plain", DType::kF32, {1, 4});
  const Value mean = state(g, "mean", DType::kF32, {1, 4});
  const Value one = input(g, "one", DType::kF32, {});
  const Value a = balance_loss(g, plain, mean, one, 0.5, "a");
  const Value b = scale(g, balance_loss(g, plain, mean, one, 0.5, "b"), 3.0);
  const std::vector<Value> grads = gradients(g, add(g, a, b), {mean});
  g.mark_output("grad", grads[0]);
  auto out = interpret(g, {{"plain", to_host(filled({1, 4}, {1, 2, 3, 4}))},
                           {"mean", to_host(filled({1, 4}, {1, 1, 1, 1}))},
                           {"one", to_host(filled({}, {1}))}});
  expect_near(values_of(out["grad"]), {2, 4, 6, 8}, 1e-15, "gradient");
}

}  // namespace
}  // namespace moetrain::test
