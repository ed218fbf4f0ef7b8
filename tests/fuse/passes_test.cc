// Every fusion pass keeps what the graph computes, and finds what it is there for.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "compile/compile.h"
#include "compile/fuse/passes.h"
#include "compile/fuse/rope_split.h"
#include "graph/interpret.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "tiny_model.h"

namespace moetrain::test {
namespace {

/// The global graph taken as the graph of one rank.
LocalGraph one_rank(Graph graph) {
  LocalGraph local;
  local.graph = std::move(graph);
  return local;
}

HostTensor content(const Node& node) {
  const Type& type = node.outputs[0];
  HostTensor tensor = make_host_tensor(type.dtype, type.shape);
  const CounterRandom random(3, node.name);
  for (int64_t i = 0, n = numel(type.shape); i < n; ++i) {
    double value = 0.3 * random.normal(static_cast<uint64_t>(i));
    if (node.name == "pos") value = static_cast<double>(i % type.shape[1]);
    else if (node.name.starts_with("tokens") || node.name.starts_with("labels")) value = static_cast<double>(i * 7 % 32);
    else if (!is_float(type.dtype)) value = 0;
    else if (node.name.starts_with("valid")) value = 1;
    else if (node.name.starts_with("v:") || node.name == "hyper") value = 0.1 + std::abs(value);
    else if (node.name.starts_with("scale")) value = 0.05;
    if (type.dtype == DType::kI32) tensor.view().as<int32_t>()[i] = static_cast<int32_t>(value);
    else if (type.dtype == DType::kI64) tensor.view().as<int64_t>()[i] = static_cast<int64_t>(value);
    else set_element(tensor.view(), i, value);
  }
  return tensor;
}

std::map<std::string, HostTensor> run(const Graph& graph) {
  std::map<std::string, HostTensor> feeds;
  for (const Node& node : graph.nodes) {
    if (node.op == &ops::kInput || node.op == &ops::kState) feeds[node.name] = content(node);
  }
  return interpret(graph, feeds);
}

class Fusion : public testing::TestWithParam<DType> {};

TEST_P(Fusion, KeepsEveryOutputAndState) {
  LocalGraph local = one_rank(training_graph(tiny_model(), GetParam()));
  const auto expected = run(local.graph);
  for (const FusionPass& pass : fusion_passes()) {
    FusionReport report;
    const size_t before = local.graph.nodes.size();
    local = pass.run(local, report);
    verify(local.graph);
    // Running side by side moves the same bytes.
    if (report.nodes > 0 && pass.name != std::string("side_by_side")) {
      EXPECT_GT(report.bytes_saved, 0) << pass.name;
    }
    EXPECT_LE(local.graph.nodes.size(), before) << pass.name;
    const auto actual = run(local.graph);
    ASSERT_EQ(actual.size(), expected.size()) << pass.name;
    for (const auto& [name, tensor] : expected) {
      const Tensor a = actual.at(name).view(), b = tensor.view();
      ASSERT_EQ(a.shape, b.shape) << pass.name << ' ' << name;
      if (!is_float(b.dtype)) {
        EXPECT_EQ(actual.at(name).bytes, tensor.bytes) << pass.name << ' ' << name;
        continue;
      }
      for (int64_t i = 0; i < b.numel(); ++i) {
        const double x = get_element(a, i), y = get_element(b, i);
        ASSERT_NEAR(x, y, 1e-11 * (1 + std::abs(y))) << pass.name << ' ' << name << '[' << i << ']';
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Fusion, testing::Values(DType::kF32, DType::kBF16));

int count(const Graph& graph, const std::string& op) {
  int n = 0;
  for (const Node& node : graph.nodes) n += op == node.op->name;
  return n;
}

TEST(FusionCounts, ResidualsMeetNorms) {
  CompileRequest request;
  const Compiled fused = compile(training_graph(tiny_model(), DType::kBF16), request);
  // Blocks 0 to 2 and the MTP block: each norms its attended stream; the outputs of blocks 0 to 2 are
  // normed by the next block or at the end, and the MTP block's by its own norm.
  EXPECT_EQ(count(fused.local.graph, "add_rms_norm"), 8);
  EXPECT_GE(count(fused.local.graph, "rms_norm_grad_add"), 8);
  for (const Node& node : fused.local.graph.nodes) {
    if (std::string(node.op->name) != "assign") continue;
    EXPECT_NE(node.outputs[0].dtype, DType::kBF16) << node.name;
  }
}

/// What stands around rope: nodes left and made by the pass, over the 4 blocks of the tiny model.
struct RopeCounts {
  int split, concat, cast, norm_rope, norm_rope_grad, in_place;
};
RopeCounts rope_counts(const Graph& graph) {
  RopeCounts c{count(graph, "split"),     count(graph, "concat"),         count(graph, "cast"),
               count(graph, "norm_rope"), count(graph, "norm_rope_grad"), 0};
  for (const Node& node : graph.nodes) c.in_place += node.attrs.integer_or("in_place", 0) != 0;
  return c;
}
Compiled compiled(Graph graph, bool rope_split, RecomputeMode mode = RecomputeMode::kNone) {
  CompileRequest request;
  request.recompute = mode;
  request.fusion_off = {"side_by_side"};  // its nodes hide those to be counted
  if (!rope_split) request.fusion_off.push_back("rope_split");
  return compile(std::move(graph), request);
}

TEST(RopeSplit, TakesWhatStandsAroundRope) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t q_lora : {int64_t{0}, int64_t{8}}) {
      ModelConfig model = tiny_model();
      model.q_lora_rank = q_lora;
      const Graph graph = training_graph(model, dtype);
      const Compiled apart = compiled(graph, false), fused = compiled(graph, true);
      const RopeCounts a = rope_counts(apart.local.graph), f = rope_counts(fused.local.graph);
      EXPECT_EQ(a.norm_rope + a.norm_rope_grad + a.in_place, 0);
      // The MTP block joins two streams: a concatenation and a split remain.
      EXPECT_EQ(f.split, a.split - 4);
      EXPECT_EQ(f.concat, a.concat - 4);
      EXPECT_EQ(f.norm_rope, 4);
      EXPECT_EQ(f.norm_rope_grad, 4);
      EXPECT_EQ(f.in_place, 8) << "queries, there and back";
      // In bf16 the key's casts there and back, and the joint gradient's.
      EXPECT_EQ(f.cast, a.cast - (dtype == DType::kBF16 ? 12 : 0));
      for (const PassTime& pass : fused.passes) {
        if (pass.name != "fuse rope_split") continue;
        const int64_t n = 2 * 6, c = 8, r = 4, heads = 2;
        const bool narrow = dtype == DType::kBF16;
        EXPECT_EQ(pass.fused, 4 * (narrow ? 3 + 4 : 2 + 2));
        const int64_t latent = 4 * n * (2 * (c + r) + 2 * (c + r));
        const int64_t casts = narrow ? 4 * n * (2 * r + 2 * r + 2 * (c + r)) : 0;
        const int64_t queries = 2 * 2 * n * heads * 4 * (narrow ? 2 : 4);
        EXPECT_EQ(pass.bytes_saved, 4 * (latent + casts + queries));
      }
      EXPECT_LT(fused.plan.slots.size(), apart.plan.slots.size());
    }
  }
}

TEST(RopeSplit, SavesTheBytesItReports) {
  const Graph graph = training_graph(tiny_model(), DType::kBF16);
  double bytes[2] = {};
  int64_t reported = 0;
  for (bool on : {false, true}) {
    const Compiled c = compiled(graph, on);
    for (const Node& node : c.local.graph.nodes) {
      std::vector<Type> in;
      for (Value v : node.inputs) in.push_back(c.local.graph.type(v));
      if (node.op->cost != nullptr) bytes[on] += node.op->cost(node.attrs, in, node.outputs).bytes;
    }
    for (const PassTime& pass : c.passes) {
      if (pass.name == "fuse rope_split") reported = pass.bytes_saved;
    }
  }
  // The ops' own count differs by what is read twice or not at all: positions and the joint latent's
  // rotary part, which the gradient steps over but counts.
  const double positions = 4.0 * 2 * 6, rotary = 4.0 * 2 * 6 * 4;
  EXPECT_NEAR(bytes[false] - bytes[true], static_cast<double>(reported), 4 * (rotary + 3 * positions));
  EXPECT_GT(reported, 0);
}

TEST(RopeSplit, MergesWithinEachPhaseOfRecomputation) {
  const Graph graph = training_graph(tiny_model(), DType::kBF16);
  for (RecomputeMode mode : {RecomputeMode::kSelective, RecomputeMode::kFull}) {
    const RopeCounts f = rope_counts(compiled(graph, true, mode).local.graph);
    EXPECT_EQ(f.norm_rope, 8) << "there and again";
    EXPECT_EQ(f.norm_rope_grad, 4);
    EXPECT_EQ(f.in_place, 12);
  }
}

TEST(RopeSplit, LeavesWhatOthersReadAlone) {
  Graph graph;
  const ops::RopeTable table{{1.0, 0.1}, 1, true};
  const Value pos = ops::input(graph, "pos", DType::kI32, {2, 6});
  const Value x = ops::input(graph, "x", DType::kF32, {2, 6, 2, 4});
  const Value first = ops::rope(graph, x, pos, table, "of an input");
  graph.mark_output("seen", first);
  const Value second = ops::rope(graph, first, pos, table, "of an output");
  const Value third = ops::rope(graph, second, pos, table, "alone");
  const Value fourth = ops::rope(graph, third, pos, table, "one of two");
  graph.mark_output("sum", ops::add(graph, third, fourth));
  FusionReport report;
  LocalGraph local = one_rank(graph);
  local = fuse_rope_split(local, report);
  for (const Node& node : local.graph.nodes) {
    EXPECT_EQ(node.attrs.integer_or("in_place", 0) != 0, node.name == "alone") << node.name;
  }
}

// The gradient that reaches the norm before experts comes from the shared expert, the routed ones and the
// router; the shared expert's two products have become one before.
TEST(FusionCounts, NormGradientsTakeTheTermsOfTheirSum) {
  const Compiled fused = compile(training_graph(tiny_model(), DType::kBF16), {});
  int of_terms = 0;
  for (const Node& node : fused.local.graph.nodes) {
    of_terms += std::string(node.op->name) == "rms_norm_grad_add" && node.inputs.size() == 7;
  }
  EXPECT_EQ(of_terms, 3) << "two layers of experts and the MTP block";
}

TEST(FusionCounts, EachPassCanBeSwitchedOff) {
  CompileRequest request;
  for (const FusionPass& pass : fusion_passes()) request.fusion_off.push_back(pass.name);
  const Compiled apart = compile(training_graph(tiny_model(), DType::kBF16), request);
  EXPECT_EQ(count(apart.local.graph, "add_rms_norm") + count(apart.local.graph, "rms_norm_grad_add"), 0);
  for (const PassTime& pass : apart.passes) EXPECT_FALSE(pass.name.starts_with("fuse ")) << pass.name;
  request.fusion_off = {"norm_residual"};
  const Compiled some = compile(training_graph(tiny_model(), DType::kBF16), request);
  EXPECT_EQ(count(some.local.graph, "add_rms_norm"), 0);
  bool named = false;
  for (const PassTime& pass : some.passes) {
    if (pass.name == "fuse adamw_copy") named = pass.fused > 0 && pass.bytes_saved > 0;
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace moetrain::test
