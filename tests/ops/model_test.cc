// A tiny two-layer model built from the operators by hand: closed forms and finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "harness.h"
#include "ops/attention.h"
#include "ops/autodiff.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/route.h"
#include "ops/swiglu.h"
#include "ops/vocab_loss.h"

namespace moetrain::test {
namespace {

using namespace ops;

constexpr int64_t kBatch = 2, kLength = 5, kHidden = 8, kVocab = 12, kHeads = 2, kNope = 3, kRope = 2,
                  kValue = 3, kRank = 4, kWide = 6, kExperts = 6, kTopK = 2;

/// One layer with attention, one dense and one of experts; a balance loss; every weight a state.
class Model {
 public:
  Graph g;
  std::vector<Value> weights;
  Value loss, sum;

  explicit Model(DType dtype) : dtype_(dtype) {
    const Value tokens = input(g, "tokens", DType::kI32, {kBatch, kLength});
    const Value labels = input(g, "labels", DType::kI32, {kBatch, kLength});
    const Value valid = input(g, "valid", DType::kF32, {kBatch, kLength});
    const Value scale = input(g, "scale", DType::kF32, {});
    const Value sequences = input(g, "sequences", DType::kF32, {});
    pos_ = input(g, "pos", DType::kI32, {kBatch, kLength});
    start_ = input(g, "start", DType::kI32, {kBatch, kLength});
    bias_ = input(g, "bias", DType::kF32, {kExperts});
    Value x = embedding(g, weight("embed", {kVocab, kHidden}), tokens, dtype, "embedding");
    {
      Scope scope(g, "layers.0.", 0);
      x = add(g, x, attention_block(norm(x, "norm1")), "attended");
      x = add(g, x, ffn(norm(x, "norm2"), "mlp."), "out");
    }
    Value balance;
    {
      Scope scope(g, "layers.1.", 1);
      x = add(g, x, experts(norm(x, "norm2"), sequences, &balance), "out");
    }
    const VocabLoss head = vocab_loss(g, norm(x, "final"), weight("head", {kVocab, kHidden}), labels,
                                      valid, scale, true, "loss");
    loss = add(g, head.loss, balance, "total");
    sum = head.sum;
  }

 private:
  Value weight(const std::string& name, Shape shape) {
    weights.push_back(state(g, name, DType::kF32, std::move(shape)));
    return weights.back();
  }
  Value compute(Value w) { return cast(g, w, dtype_); }
  Value linear(Value x, const std::string& name, int64_t out, int64_t in) {
    return matmul(g, x, compute(weight(name + ".w", {out, in})), name);
  }
  Value norm(Value x, const std::string& name) {
    return rms_norm(g, x, weight(name + ".g", {g.type(x).shape.back()}), 1e-6,
                    g.type(x).dtype, name);
  }

  Value attention_block(Value x) {
    const RopeTable table{{1.0}, 1.2, true};
    const Value q = reshape(g, linear(x, "q", kHeads * (kNope + kRope), kHidden),
                            {kBatch, kLength, kHeads, kNope + kRope});
    const std::vector<Value> latent =
        split(g, linear(x, "kv_a", kRank + kRope, kHidden), {kRank, kRope}, "latent");
    const Value kv =
        reshape(g, linear(norm(latent[0], "kv_norm"), "kv_b", kHeads * (kNope + kValue), kRank),
                {kBatch, kLength, kHeads, kNope + kValue});
    const Value o = attention(g, rope(g, q, pos_, table, "q_rope"), kv,
                              rope(g, latent[1], pos_, table, "k_rope"), pos_, pos_, start_, kNope,
                              0.5, "attention");
    return linear(reshape(g, o, {kBatch, kLength, kHeads * kValue}), "o", kHidden, kHeads * kValue);
  }

  Value ffn(Value x, const std::string& name) {
    const Value gate = linear(x, name + "gate", kWide, kHidden);
    const Value up = linear(x, name + "up", kWide, kHidden);
    return linear(swiglu(g, gate, up, name + "act"), name + "down", kHidden, kWide);
  }

  Value experts(Value x, Value sequences, Value* balance) {
    const Value logits = matmul(g, cast(g, x, DType::kF32), weight("router.w", {kExperts, kHidden}),
                                "router");
    RouteOptions options{kExperts, kTopK, 3, 2, true, 1.5, kLength - 1};
    const Routing r = route(g, logits, bias_, pos_, options, "route");
    *balance = balance_loss(g, r.plain, r.mean_score, sequences, 0.01, "balance");
    const Dispatched d = dispatch(g, x, r.idx, kExperts, "dispatch");
    auto grouped = [&](Value rows, const std::string& name, int64_t out, int64_t in) {
      const Value w = weight("experts." + name, {kExperts, out, in});
      return grouped_matmul(g, rows, compute(w), d.plan, "experts." + name);
    };
    const Value gate = grouped(d.rows, "gate", kWide, kHidden);
    const Value act = swiglu(g, gate, grouped(d.rows, "up", kWide, kHidden), "experts.act");
    const Value y = grouped(act, "down", kHidden, kWide);
    return add(g, ffn(x, "shared."), combine(g, y, d.plan, r.weight, r.idx, DType::kF32, "combine"), "mixed");
  }

  DType dtype_;
  Value pos_, start_, bias_;
};

std::map<std::string, HostTensor> feeds_for(const Model& m, double head_scale) {
  std::map<std::string, HostTensor> feeds;
  auto give = [&](const std::string& name, const Operand& o) { feeds[name] = to_host(o); };
  std::vector<double> ids, pos, start, valid;
  for (int64_t i = 0; i < kBatch * kLength; ++i) {
    ids.push_back(static_cast<double>((i * 7 + 2) % kVocab));
    pos.push_back(static_cast<double>(i % kLength));
    start.push_back(i >= kLength + 3 ? 3 : 0);
    valid.push_back(i == 4 ? 0 : 1);
  }
  std::vector<double> next(ids.begin() + 1, ids.end());
  next.push_back(1);
  give("tokens", integers({kBatch, kLength}, ids));
  give("labels", integers({kBatch, kLength}, next));
  give("valid", filled({kBatch, kLength}, valid));
  give("scale", filled({}, {1.0 / 9}));
  give("sequences", filled({}, {1.0 / kBatch}));
  give("pos", integers({kBatch, kLength}, pos));
  give("start", integers({kBatch, kLength}, start));
  // Expert 5 is pushed out of every choice: it stays idle.
  give("bias", filled({kExperts}, {0.1, -0.1, 0.05, 0, 0.02, -9}));
  for (Value w : m.weights) {
    const Node& node = m.g.node(w);
    Operand o = normal(node.name, m.g.type(w).shape);
    const bool gain = o.type.shape.size() == 1;
    for (double& v : o.values) v = gain ? 1 + 0.1 * v : 0.4 * v;
    if (node.name == "head") {
      for (double& v : o.values) v *= head_scale;
    }
    give(node.name, o);
  }
  return feeds;
}

// A head of zeros predicts every token alike: the loss is ln V to the last bit or two.
TEST(TinyModel, ZeroHeadGivesTheLogarithmOfTheVocabulary) {
  Model m(DType::kF32);
  m.g.mark_output("sum", m.sum);
  auto out = interpret(m.g, feeds_for(m, 0.0));
  EXPECT_NEAR(values_of(out["sum"])[0] / 9, std::log(12.0), 1e-14);
}

TEST(TinyModel, GradientsAreFiniteDifferences) {
  Model m(DType::kF32);
  const std::vector<Value> grads = gradients(m.g, m.loss, m.weights);
  verify(m.g);
  const auto feeds = feeds_for(m, 1.0);
  Graph with_grads = m.g;
  for (size_t i = 0; i < grads.size(); ++i) {
    ASSERT_TRUE(grads[i].valid()) << m.g.node(m.weights[i]).name;
    EXPECT_EQ(m.g.type(grads[i]), (Type{DType::kF32, m.g.type(m.weights[i]).shape}));
    with_grads.mark_output(cat(i), grads[i]);
  }
  auto found = interpret(with_grads, feeds);
  Model forward(DType::kF32);
  forward.g.mark_output("loss", forward.loss);
  auto loss = [&](const std::map<std::string, HostTensor>& at) {
    return values_of(interpret(forward.g, at)["loss"])[0];
  };
  constexpr double kStep = 2e-6;
  for (size_t i = 0; i < grads.size(); ++i) {
    const std::string& name = m.g.node(m.weights[i]).name;
    const std::vector<double> grad = values_of(found[cat(i)]);
    // Along a random direction, and for a few single elements.
    const CounterRandom random(3, name);
    for (int probe = 0; probe < 4; ++probe) {
      auto up = feeds, down = feeds;
      double expected = 0;
      for (size_t e = 0; e < grad.size(); ++e) {
        const bool picked = probe == 0 || e == (probe * 131) % grad.size();
        const double direction = picked ? random.normal(e) : 0;
        const double x = get_element(feeds.at(name).view(), static_cast<int64_t>(e));
        set_element(up[name].view(), static_cast<int64_t>(e), x + kStep * direction);
        set_element(down[name].view(), static_cast<int64_t>(e), x - kStep * direction);
        expected += grad[e] * direction;
      }
      EXPECT_NEAR(expected, (loss(up) - loss(down)) / (2 * kStep), 5e-9 * (1 + std::abs(expected)))
          << name << " probe " << probe;
    }
    if (name.find("experts.") != std::string::npos) {
      for (size_t e = grad.size() / kExperts * 5; e < grad.size(); ++e) EXPECT_EQ(grad[e], 0.0);
    }
  }
}

// The graph of a bf16 run has the same mathematics: in double it gives the same numbers.
TEST(TinyModel, PrecisionChangesTypesOnly) {
  Model a(DType::kF32), b(DType::kBF16);
  const auto ga = gradients(a.g, a.loss, a.weights), gb = gradients(b.g, b.loss, b.weights);
  verify(b.g);
  a.g.mark_output("loss", a.loss);
  b.g.mark_output("loss", b.loss);
  for (size_t i = 0; i < ga.size(); ++i) {
    EXPECT_EQ(b.g.type(gb[i]).dtype, DType::kF32) << b.g.node(b.weights[i]).name;
    a.g.mark_output(cat(i), ga[i]);
    b.g.mark_output(cat(i), gb[i]);
  }
  const auto feeds = feeds_for(a, 1.0);
  auto out_a = interpret(a.g, feeds), out_b = interpret(b.g, feeds);
  for (const auto& [name, tensor] : out_a) {
    expect_near(values_of(out_b[name]), values_of(tensor), 1e-13, name);
  }
  // And in its own types it stays near.
  auto rounded = interpret(b.g, feeds, {.in_double = false});
  EXPECT_NEAR(values_of(rounded["loss"])[0], values_of(out_a["loss"])[0], 0.05);
}

}  // namespace
}  // namespace moetrain::test
