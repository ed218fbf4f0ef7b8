// Rules: grammar, factor sizes, and the one law on every kind of op.
#include "compile/shard/rule.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/experts.h"
#include "ops/embedding.h"
#include "ops/vocab_loss.h"
#include "shard/graphs.h"

namespace moetrain {
namespace {

std::string texts(const Mesh& mesh, const std::vector<Layout>& layouts) {
  std::vector<std::string> list;
  for (const Layout& layout : layouts) list.push_back(to_string(mesh, layout));
  return join(list, " ");
}

FactorAxes factors(const Mesh& mesh, const std::map<char, std::string>& by_letter) {
  FactorAxes f;
  for (const auto& [letter, text] : by_letter) {
    f.axes[letter] = parse_layout(mesh, "[" + text + "]").dims[0];
  }
  return f;
}

TEST(Rule, Grammar) {
  const Rule r = parse_rule("bs(hx), nk -> bshx,b,; whole nx; local s; linear 0|01|1>2", {3, 2});
  EXPECT_EQ(r.operands[0], (std::vector<std::string>{"b", "s", "hx"}));
  EXPECT_EQ(r.results.size(), 3u);
  EXPECT_TRUE(r.results[2].empty());
  EXPECT_EQ(r.factors, "bshxnk");
  EXPECT_EQ(r.linear, (std::vector<std::vector<int>>{{0}, {0, 1}, {1}}));
  EXPECT_EQ(r.linear_results[2], (std::vector<int>{2}));
  const Rule star = parse_rule("*k,nk->*n; linear 0|1", {4, 2});
  EXPECT_EQ(star.operands[0], (std::vector<std::string>{"A", "B", "C", "k"}));
  EXPECT_EQ(star.results[0], (std::vector<std::string>{"A", "B", "C", "n"}));
  EXPECT_EQ(parse_rule("->*", {}, {3}).results[0].size(), 3u);
  EXPECT_EQ(parse_rule("*,*,*->*; linear *", {1, 1, 1}).linear[0].size(), 3u);
  for (const char* bad : {"bs,nk", "b(s->b", "b->b; whole z", "b->b; often b", "bs->b",
                          "b->b; linear 3", "->*"}) {
    EXPECT_THROW(parse_rule(bad, {1}), InternalError) << bad;
  }
}

TEST(Rule, MatmulContractsToAPendingSum) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"mp", 4}, {"sp", 2}});
  const Rule r = parse_rule("bk,nk->bn; linear 0|1", {2, 2});
  const NodeLayouts l = layouts_for(mesh, r, factors(mesh, {{'b', "dp"}, {'k', "mp"}, {'n', "sp"}}));
  EXPECT_EQ(texts(mesh, l.operands), "[dp, mp] [sp, mp]");
  EXPECT_EQ(texts(mesh, l.results), "[dp, sp] +{mp}");
  FactorAxes pending = factors(mesh, {{'b', "dp"}});
  pending.partial = {1};
  pending.linear_group = 0;
  const NodeLayouts p = layouts_for(mesh, r, pending);
  EXPECT_EQ(texts(mesh, p.operands), "[dp, -] +{mp} [-, -]");
  EXPECT_EQ(texts(mesh, p.results), "[dp, -] +{mp}");
}

/// Scores of q [B, S, H] and k [B, H, S].
TEST(Rule, ScoresAreAPendingSum) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  const Rule r = parse_rule("bsh,bhz->bsz", {3, 3});
  const NodeLayouts l = layouts_for(mesh, r, factors(mesh, {{'b', "dp"}, {'h', "mp"}}));
  EXPECT_EQ(texts(mesh, l.operands), "[dp, -, mp] [dp, mp, -]");
  EXPECT_EQ(texts(mesh, l.results), "[dp, -, -] +{mp}");
}

TEST(Rule, CompoundDimsSplitFromTheMajorFactor) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {2, 4, 32});
  const Value y = ops::reshape(g, x, {8, 32});
  const Rule r = rule_of(g, y.node);
  const auto sizes = factor_sizes(g, y.node, r);
  const std::string major = r.operands[0][0], minor = r.operands[0][1];
  auto fault = [&](const std::string& m, const std::string& n) {
    return assignment_fault(mesh, r, sizes, factors(mesh, {{major[0], m}, {minor[0], n}}));
  };
  EXPECT_EQ(fault("a", "-"), "");
  EXPECT_EQ(fault("a", "b"), "");
  EXPECT_NE(fault("-", "b").find("minor part"), std::string::npos);
  EXPECT_NE(fault("a", "a").find("axis 'a'"), std::string::npos);
  const NodeLayouts l = layouts_for(mesh, r, factors(mesh, {{major[0], "a"}, {minor[0], "b"}}));
  EXPECT_EQ(texts(mesh, l.results), "[(a b), -]");
}

TEST(Rule, LocalVocabulary) {
  const Mesh mesh = make_mesh({{"dp", 2}, {"tp", 2}});
  Graph g;
  const Value w = ops::state(g, "w", DType::kF32, {16, 8});
  const Value ids = ops::input(g, "ids", DType::kI32, {2, 4});
  const Value valid = ops::input(g, "valid", DType::kF32, {2, 4});
  const Value scale = ops::input(g, "scale", DType::kF32, {});
  const Value x = ops::embedding(g, w, ids, DType::kF32, "embed");
  const auto loss = ops::vocab_loss(g, x, w, ids, valid, scale, true, "loss");
  const FactorAxes f = factors(mesh, {{'b', "dp"}, {'v', "tp"}});
  const NodeLayouts e = layouts_for(mesh, rule_of(g, x.node), f);
  EXPECT_EQ(texts(mesh, e.operands), "[tp, -] [dp, -]");
  EXPECT_EQ(texts(mesh, e.results), "[dp, -, -] +{tp}");
  const NodeLayouts l = layouts_for(mesh, rule_of(g, loss.loss.node), f);
  // loss, sum, dx, dw: the expansion finishes the losses over tp, not over the tokens.
  EXPECT_EQ(texts(mesh, l.results), "[] +{dp} [] +{dp} [dp, -, -] +{tp} [tp, -] +{dp}");
}

TEST(Rule, DispatchAndCombineShareAxesOfExpertsAndTokens) {
  const Mesh mesh = make_mesh({{"edp", 2}, {"ep", 2}, {"tp", 2}});
  Graph g;
  const Value x = ops::input(g, "x", DType::kF32, {4, 4, 8});
  const Value idx = ops::input(g, "idx", DType::kI32, {4, 4, 2});
  const Value weight = ops::input(g, "weight", DType::kF32, {4, 4, 2});
  const auto d = ops::dispatch(g, x, idx, 8, "dispatch");
  const Value y = ops::combine(g, d.rows, d.plan, weight, idx, DType::kF32, "combine");
  const Rule dispatch = rule_of(g, d.rows.node), combine = rule_of(g, y.node);
  const auto sizes = factor_sizes(g, d.rows.node, dispatch);

  FactorAxes f = factors(mesh, {{'b', "(edp ep)"}, {'s', "tp"}, {'e', "(ep tp)"}});
  EXPECT_EQ(assignment_fault(mesh, dispatch, sizes, f), "");
  EXPECT_EQ(texts(mesh, layouts_for(mesh, dispatch, f).results), "[(ep tp), edp, -] [-]");
  EXPECT_EQ(texts(mesh, layouts_for(mesh, combine, f).results), "[(edp ep), tp, -]");
  // Tokens whole over tp: every rank picks its own experts' rows, combine is a pending sum.
  f = factors(mesh, {{'b', "(edp ep)"}, {'e', "(ep tp)"}});
  EXPECT_EQ(texts(mesh, layouts_for(mesh, dispatch, f).operands), "[(edp ep), -, -] [(edp ep), -, -]");
  EXPECT_EQ(texts(mesh, layouts_for(mesh, dispatch, f).results), "[(ep tp), edp, -] [-]");
  EXPECT_EQ(texts(mesh, layouts_for(mesh, combine, f).results), "[(edp ep), -, -] +{tp}");
  // No axis on b and s at once, though both may meet e.
  f = factors(mesh, {{'b', "ep"}, {'s', "ep"}, {'e', "ep"}});
  EXPECT_NE(assignment_fault(mesh, dispatch, sizes, f), "");
}

TEST(Rule, FaultsSayWhy) {
  const Mesh mesh = make_mesh({{"a", 2}, {"b", 4}});
  const Rule r = parse_rule("bsd,d->bsd; whole d", {3, 1});
  const std::vector<int64_t> sizes{6, 8, 16};
  auto fault = [&](const std::map<char, std::string>& f) {
    return assignment_fault(mesh, r, sizes, factors(mesh, f));
  };
  EXPECT_EQ(fault({{'b', "a"}, {'s', "b"}}), "");
  EXPECT_NE(fault({{'b', "b"}}).find("cannot be cut into 4"), std::string::npos);
  EXPECT_NE(fault({{'d', "a"}}).find("never split"), std::string::npos);
  EXPECT_NE(fault({{'q', "a"}}).find("not of the rule"), std::string::npos);
}

}  // namespace
}  // namespace moetrain
