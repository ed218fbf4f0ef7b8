// Running sharded graphs.
#include "user_shard/run_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/random.h"
#include "compile/lower.h"
#include "compile/shard/apply_step.h"
#include "graph/op.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/executor.h"

namespace moetrain {

GraphRun run_graph(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
                   const LinkModel& links, const Tensors& leaves) {
  GraphRun run;
  run.outputs.resize(mesh.size());
  std::map<std::string, RankArrays> parts;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!leaves.contains(node.name) || !node.inputs.empty()) continue;
    parts[node.name] = scatter(mesh, sharding.nodes[n].layouts.results[0], node.outputs[0].shape,
                               leaves.at(node.name));
  }
  std::mutex mutex;
  run_local_ranks(mesh.size(), links.ranks_per_node, [&](Fabric& fabric) {
    const int rank = fabric.rank();
    const LocalGraph local = partition(graph, sharding, mesh, links, rank);
    LowerOptions options;
    options.world = mesh.size();
    const Plan plan = lower(local, mesh, rank, options);
    CpuOptions cpu;
    cpu.reference = true;
    const auto device = make_cpu_device(cpu);
    Executor executor(plan, *device, fabric);
    for (const auto* ports : {&plan.states, &plan.inputs}) {
      for (const Port& port : *ports) {
        const std::vector<double>& part = parts.at(port.name)[rank];
        const std::vector<float> values(part.begin(), part.end());
        executor.write(port, values.data(), values.size() * sizeof(float));
      }
    }
    for (const Segment& segment : plan.segments) executor.run(segment.name);
    for (const Port& port : plan.outputs) {
      std::vector<float> values(numel(port.global.shape));
      executor.read(port, values.data(), values.size() * sizeof(float));
      run.outputs[rank][port.name].assign(values.begin(), values.end());
    }
    if (rank != 0) return;
    const std::lock_guard<std::mutex> lock(mutex);
    run.reshards = local.reshards;
    for (const Segment& segment : plan.segments) {
      for (const Instruction& in : segment.instructions) {
        if (const auto* c = std::get_if<Collective>(&in.what)) {
          run.collectives.push_back(std::string(c->op->name) + " " + plan.groups[c->group].name);
        }
      }
    }
  });
  return run;
}

Tensors expected(const Graph& graph, const Tensors& leaves) {
  std::map<std::string, HostTensor> feeds;
  for (const Node& node : graph.nodes) {
    if (!leaves.contains(node.name) || !node.inputs.empty()) continue;
    HostTensor tensor = make_host_tensor(DType::kF64, node.outputs[0].shape);
    Tensor view = tensor.view();
    const std::vector<double>& values = leaves.at(node.name);
    for (size_t i = 0; i < values.size(); ++i) {
      set_element(view, static_cast<int64_t>(i), values[i]);
    }
    feeds[node.name] = std::move(tensor);
  }
  Tensors out;
  for (const auto& [name, tensor] : interpret(graph, feeds)) {
    if (name.starts_with("state:")) continue;
    for (int64_t i = 0; i < numel(tensor.shape); ++i) {
      out[name].push_back(get_element(tensor.view(), i));
    }
  }
  return out;
}

Tensors leaf_values(const Graph& graph) {
  Tensors leaves;
  for (const Node& node : graph.nodes) {
    if (!node.inputs.empty() || (std::string(node.op->name) != "input" &&
                                 std::string(node.op->name) != "state")) {
      continue;
    }
    const CounterRandom random(11, node.name);
    std::vector<double>& values = leaves[node.name];
    for (int64_t i = 0; i < numel(node.outputs[0].shape); ++i) {
      values.push_back(static_cast<double>(random.bits(i) % 2001) / 1000.0 - 1.0);
    }
  }
  return leaves;
}

void expect_same(const Tensors& wanted, const GraphRun& run, double tolerance) {
  ASSERT_FALSE(wanted.empty());
  for (size_t rank = 0; rank < run.outputs.size(); ++rank) {
    ASSERT_EQ(run.outputs[rank].size(), wanted.size());
    for (const auto& [name, values] : wanted) {
      const std::vector<double>& got = run.outputs[rank].at(name);
      ASSERT_EQ(got.size(), values.size()) << name;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(got[i], values[i], tolerance * (1 + std::abs(values[i])))
            << name << "[" << i << "] on rank " << rank;
      }
    }
  }
}

}  // namespace moetrain
