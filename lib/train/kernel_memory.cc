// Asks the device about every launch, as the executor does when it starts.
#include "train/kernel_memory.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "train/pipeline.h"

namespace moetrain {

namespace {

/// Micro-batches of an update up to which copies of weights cost as much as they save.
constexpr int kFewReads = 4;

}  // namespace

CpuOptions cpu_options(const Config& config, const Graph& graph, int64_t threads) {
  CpuOptions cpu;
  cpu.threads = static_cast<int>(threads);
  const std::vector<int> micro_batches = config_micro_batches(config);
  cpu.keep_packed = config.compute.packed_weights &&
                    (config_order(config, graph) == PipelineOrder::kForwardOnly ||
                     *std::max_element(micro_batches.begin(), micro_batches.end()) > kFewReads);
  return cpu;
}

KernelMemory kernel_memory(const Plan& plan, Device& device) {
  KernelMemory memory;
  std::set<std::pair<int, const void*>> kept;
  for (const Segment& segment : plan.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const auto* l = std::get_if<Launch>(&instruction.what);
      if (!l) continue;
      std::vector<Type> in, out;
      for (int s : l->in) in.push_back(plan.slots[s].type);
      for (int s : l->out) out.push_back(plan.slots[s].type);
      const KernelChoice kernel = device.choose(*l->op, l->attrs, in, out);
      memory.workspace = std::max(memory.workspace, static_cast<int64_t>(kernel.workspace_bytes));
      const int64_t rows = expected_rows(plan, *l);
      for (size_t i = 0; i < in.size(); ++i) {
        const int weight = root_slot(plan, l->in[i]);
        if (plan.slots[weight].home != Home::kState) continue;
        const int64_t bytes = device.kept_bytes(kernel, l->attrs, i, in[i], rows);
        if (bytes > 0 && kept.insert({weight, kernel.handle}).second) memory.packed += bytes;
      }
    }
  }
  return memory;
}

}  // namespace moetrain
