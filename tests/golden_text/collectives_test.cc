// Every collective of seven layouts, with its bytes, against committed text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "golden_text/tiny_plan.h"

namespace moetrain {
namespace {

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};

const Case kCases[] = {
    {"tp_sp", 2, {"parallel.tensor=2"}},
    {"tp_extend_ep", 4, {"parallel.tensor=2", "parallel.expert=2"}},
    {"ep_classic", 4,
     {"parallel.tensor=2", "parallel.expert=2", "parallel.tp_extend_ep=false"}},
    {"zero3", 2, {"parallel.zero=3"}},
    {"cp", 2, {"parallel.context=2"}},
    {"dp_ep", 4, {"parallel.expert=2"}},
    {"zero1_bf16", 2, {"parallel.zero=1", "compute.precision=bf16"}},
};

std::string text_of(const Case& c) {
  return print_collectives(tiny_plan(c.ranks, c.settings).compiled.plan);
}

class GoldenText : public testing::TestWithParam<Case> {};

TEST_P(GoldenText, CollectivesAreAsCommitted) {
  const Case& c = GetParam();
  const std::string path = std::string(MOETRAIN_TEST_DATA) + "/golden_text/" + c.name + ".txt";
  const std::string text = text_of(c);
  ASSERT_FALSE(text.empty());
  if (std::getenv("MOETRAIN_REGENERATE") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(text, committed.str()) << "accept with MOETRAIN_REGENERATE=1 (see README.md)";
}

INSTANTIATE_TEST_SUITE_P(Layouts, GoldenText, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// Collectives around the experts (not the exchange of token rows and its routing) in one plan.
int gathers_around_experts(const std::string& text) {
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool moe = line.find(".moe.") != std::string::npos || line.find(".mlp.norm") != std::string::npos;
    const bool dense = line.find("layers.0") != std::string::npos;
    const bool moves = line.find("all_gather") != std::string::npos ||
                       line.find("reduce_scatter") != std::string::npos;
    const bool update = line.find("settle") != std::string::npos || line.find("assign") != std::string::npos;
    count += moe && moves && !dense && !update;
  }
  return count;
}

TEST(GoldenText, TpExtendEpHasNoGatherAroundTheExperts) {
  EXPECT_EQ(gathers_around_experts(text_of(kCases[1])), 0);
  EXPECT_GE(gathers_around_experts(text_of(kCases[2])), 4);
}

// Masters are fp32 and split over the replicas; what travels back is the bf16 weight.
TEST(GoldenText, UpdatedWeightsTravelRounded) {
  std::istringstream lines(text_of(kCases[6]));
  int gathered = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("all_gather") == std::string::npos || line.find("proj.weight ") == std::string::npos) {
      continue;  // embedding and router weights are fp32
    }
    ++gathered;
    EXPECT_NE(line.find("bf16"), std::string::npos) << line;
  }
  EXPECT_GT(gathered, 5);
}

}  // namespace
}  // namespace moetrain
