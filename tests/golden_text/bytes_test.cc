// Plans against the formulas of hand-written layouts: what rank 0 sends in one micro-batch or update.
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>

#include "golden_text/tiny_plan.h"

namespace moetrain {
namespace {

constexpr int64_t kSequence = 32, kWidth = 64, kTopK = 2, kHeads = 4, kFloat = 4;

/// Bytes of the collectives of one segment whose name or op holds one of `with` (empty: all) and none of
/// `without`.
int64_t bytes_of(const TinyPlan& plan, const std::string& segment,
                 const std::vector<std::string>& with, const std::vector<std::string>& without) {
  std::istringstream lines(print_collectives(plan.compiled.plan));
  int64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(segment + " ") || line.starts_with(segment + " total")) continue;
    const auto holds = [&](const std::string& text) { return line.find(text) != std::string::npos; };
    if (!with.empty() && std::none_of(with.begin(), with.end(), holds)) continue;
    if (std::any_of(without.begin(), without.end(), holds)) continue;
    bytes += std::stoll(line.substr(line.rfind(' ') + 1));
  }
  return bytes;
}

int64_t matrices(const Graph& graph, bool vectors) {
  int64_t elements = 0;
  for (const Node& node : graph.nodes) {
    if (!node.name.starts_with("grad:")) continue;
    if ((node.outputs[0].shape.size() < 2) == vectors) elements += numel(node.outputs[0].shape);
  }
  return elements;
}

void expect_at_most(const char* name, int64_t plan, int64_t formula) {
  std::printf("%-44s %9lld %9lld %6.1f %%\n", name, static_cast<long long>(formula),
              static_cast<long long>(plan),
              100.0 * static_cast<double>(plan) / static_cast<double>(formula));
  EXPECT_GT(plan, 0) << name;
  EXPECT_LE(plan, formula) << name;
}

TEST(Bytes, PlansMoveNoMoreThanHandWrittenLayouts) {
  std::printf("%-44s %9s %9s\n", "layout, part", "formula", "plan");
  {
    // Column, row and sequence parallel: per block a gather and a scatter forward, the same backward, and a
    // gather again for the weight gradient; two blocks in the dense layer, attention in the other;
    // the embedding scatters and gathers once, the head gathers twice and scatters once.
    const TinyPlan plan = tiny_plan(2, {"parallel.tensor=2"});
    const int64_t unit = kSequence * kWidth * kFloat / 2;
    const std::vector<std::string> experts{".moe.", "balance", "statistics"};
    expect_at_most("tensor 2 + sequence, dense parts", bytes_of(plan, "step", {}, experts),
                   (10 + 5 + 2 + 3) * unit);
    expect_at_most("  attention of both layers", bytes_of(plan, "step", {"attn."}, {"embed"}),
                   2 * 5 * unit);
  }
  {
    // Tokens to their experts and back, forward and backward: a row per token and choice.
    const TinyPlan plan = tiny_plan(4, {"parallel.expert=4"});
    const int64_t rows = kSequence * kTopK * kWidth * kFloat * 3 / 4;
    expect_at_most("expert 4, token rows", bytes_of(plan, "step", {"rows_all_to_all"}, {}), 4 * rows);
  }
  {
    // Experts' hidden dim over tp: gather before and scatter after the experts, forward and backward,
    // against whole experts over ep x tp, which have rows only.
    const std::vector<std::string> rows{"rows_all_to_all"};
    const std::vector<std::string> around{".moe.", "mlp.norm ->"};
    const TinyPlan classic =
        tiny_plan(4, {"parallel.tensor=2", "parallel.expert=2", "parallel.tp_extend_ep=false"});
    const TinyPlan extended = tiny_plan(4, {"parallel.tensor=2", "parallel.expert=2"});
    const int64_t row = kTopK * kWidth * kFloat;
    const int64_t hand = 4 * kSequence * row / 2 + 4 * kSequence * kWidth * kFloat / 2;
    const std::vector<std::string> dense{"layers.0.", "balance", "counts"};
    expect_at_most("tp 2 x ep 2 as whole experts, MoE part", bytes_of(extended, "step", around, dense),
                   hand);
    EXPECT_LT(bytes_of(extended, "step", around, dense), bytes_of(classic, "step", around, dense));
  }
  {
    // Keys and values of all positions: gathered forward, again backward, their gradients scattered.
    const TinyPlan plan = tiny_plan(2, {"parallel.context=2"});
    const int64_t keys = kSequence * kHeads * (16 + 8) * kFloat / 2;
    const int64_t values = kSequence * kHeads * 16 * kFloat / 2;
    expect_at_most("context 2, attention", bytes_of(plan, "step", {"attn."}, {}),
                   2 * 3 * (keys + values));
  }
  {
    // Gradients scattered, parameters gathered; vectors reduced.
    const TinyPlan plan = tiny_plan(2, {});
    const int64_t half = matrices(plan.graph, false) * kFloat / 2;
    const int64_t small = matrices(plan.graph, true) * kFloat;
    expect_at_most("data 2, zero 1, update", bytes_of(plan, "update", {"weight"}, {}), 2 * half + small);
  }
}

}  // namespace
}  // namespace moetrain
