// Pricing instructions.
#include "compile/predict.h"

#include <algorithm>
#include <map>

#include "base/dtype.h"

namespace moetrain {

namespace {

using Kind = ReshardStep::Kind;

Kind kind_of(const std::string& op) {
  if (op == "all_gather") return Kind::kAllGather;
  if (op == "reduce_scatter") return Kind::kReduceScatter;
  if (op == "all_reduce") return Kind::kAllReduce;
  return Kind::kAllToAll;
}

double collective_seconds(const Plan& plan, const Collective& c, const LinkModel& links) {
  const RankGroup& group = plan.groups[c.group];
  if (c.out.empty()) return 0;  // a message is priced where it arrives
  if (c.in.empty()) {
    const double bytes = static_cast<double>(plan.slots[c.out[0]].bytes);
    return crosses_nodes(group, links) ? links.inter_latency + bytes / links.inter_bandwidth
                                       : links.intra_latency + bytes / links.intra_bandwidth;
  }
  std::map<int, int> nodes;
  for (int r : group.ranks) ++nodes[r / std::max(1, links.ranks_per_node)];
  const GroupShape shape{static_cast<int>(group.ranks.size()), static_cast<int>(nodes.size()),
                         nodes.begin()->second};
  return collective_cost(links, kind_of(c.op->name), shape, plan.slots[c.in[0]].bytes).seconds;
}

double launch_seconds(const Plan& plan, const Launch& launch, const LinkModel& links) {
  if (launch.op->cost == nullptr) return 0;
  bool bf16 = false;
  auto types = [&](const std::vector<int>& slots) {
    std::vector<Type> out;
    for (int s : slots) {
      Type type = plan.slots[s].type;
      const int extent = plan.slots[s].extent;
      bf16 |= type.dtype == DType::kBF16;
      // cost functions read a ragged value's rows from dim 1
      if (type.ragged && extent >= 0) type.shape[1] = plan.extents[extent].expected;
      out.push_back(type);
    }
    return out;
  };
  const Cost cost = launch.op->cost(launch.attrs, types(launch.in), types(launch.out));
  double bytes = 0;  // a ragged type's leading dim would count its rows once per expert
  for (const auto* slots : {&launch.in, &launch.out}) {
    for (int s : *slots) bytes += static_cast<double>(plan.slots[s].bytes);
  }
  return std::max(cost.matmul_flops / (bf16 ? links.bf16_flops : links.fp32_flops),
                  std::min(bytes, cost.bytes) / links.memory_bandwidth);
}

}  // namespace

bool crosses_nodes(const RankGroup& group, const LinkModel& links) {
  const int per_node = std::max(1, links.ranks_per_node);
  return std::any_of(group.ranks.begin(), group.ranks.end(),
                     [&](int r) { return r / per_node != group.ranks.front() / per_node; });
}

double predicted_seconds(const Plan& plan, const Instruction& instruction, const LinkModel& links) {
  if (const auto* c = std::get_if<Collective>(&instruction.what)) {
    return collective_seconds(plan, *c, links);
  }
  const auto* launch = std::get_if<Launch>(&instruction.what);
  return launch == nullptr ? 0 : launch_seconds(plan, *launch, links);
}

}  // namespace moetrain
