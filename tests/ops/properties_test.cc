// Asks every operator case the same questions (types, gradient, linearity, splits, cost, storage).
#include <gtest/gtest.h>

#include <set>

#include "harness.h"

namespace moetrain::test {
namespace {

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (auto part : {basic_cases, dense_cases, expert_cases, update_cases}) {
    for (OpCase& c : part()) cases.push_back(std::move(c));
  }
  return cases;
}

class Operator : public testing::TestWithParam<OpCase> {};

TEST_P(Operator, InfersTypes) { check_types(GetParam()); }
TEST_P(Operator, GradientIsFiniteDifference) { check_gradient(GetParam()); }
TEST_P(Operator, LinearClausesAreTrue) { check_linear_clauses(GetParam()); }
TEST_P(Operator, SplitFactorsGiveTheGlobalResult) { check_splits(GetParam()); }
TEST_P(Operator, CostIsSane) { check_cost(GetParam()); }
TEST_P(Operator, RoundsOnceWhenStored) { check_storage_dtypes(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, Operator, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

// A row without a rule would not compile into a plan; a row without a cost would be free.
TEST(Operators, AnswerEveryQuestion) {
  std::set<std::string> names;
  for (const OpCase& c : all_cases()) {
    names.insert(c.op->name);
    EXPECT_NE(c.op->infer, nullptr) << c.op->name;
    EXPECT_NE(c.op->rule, nullptr) << c.op->name;
    EXPECT_NE(c.op->cost, nullptr) << c.op->name;
    EXPECT_NE(c.op->reference, nullptr) << c.op->name;
  }
  EXPECT_EQ(names.size(), 45u) << "an operator joined or left: give it a case";
}

}  // namespace
}  // namespace moetrain::test
