// Every fusion pass keeps what the graph computes, and finds what it is there for.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "compile/compile.h"
#include "compile/fuse/passes.h"
#include "graph/interpret.h"
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
    if (report.nodes > 0) {
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
