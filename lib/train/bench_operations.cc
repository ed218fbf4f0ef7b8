// Adds up a step's instructions.
#include "train/bench_operations.h"

#include <algorithm>
#include <vector>

#include "graph/op.h"
#include "train/bench_tools.h"

namespace moetrain {

double OperationTimes::flops_of(const Launch& launch) const {
  if (launch.op->cost == nullptr) return 0;
  const Plan& plan = session_.plan();
  const std::vector<int64_t>& bound = session_.executor().extents();
  auto types = [&](const std::vector<int>& slots) {
    std::vector<Type> out;
    for (int s : slots) {
      Type type = plan.slots[s].type;
      const int extent = plan.slots[s].extent;
      // cost functions read a ragged value's rows from dim 1
      if (type.ragged && extent >= 0) type.shape[1] = bound.at(extent);
      out.push_back(type);
    }
    return out;
  };
  return launch.op->cost(launch.attrs, types(launch.in), types(launch.out)).matmul_flops;
}

void OperationTimes::ran(const Segment&, const Instruction& instruction, const Executed& times) {
  std::string name = "memory of token rows";
  double flops = 0;
  if (const auto* launch = std::get_if<Launch>(&instruction.what)) {
    name = launch->op->name;
    flops = flops_of(*launch);
  } else if (const auto* collective = std::get_if<Collective>(&instruction.what)) {
    name = std::string(collective->op->name) + " (" +
           session_.plan().groups[collective->group].name + ")";
  } else if (std::holds_alternative<Bind>(instruction.what)) {
    name = "bind counts";
  }
  Row& row = rows_[name];
  ++row.calls;
  row.seconds += instruction.lane == kComputeLane ? times.end - times.begin : times.exposed;
  row.flops += flops;
}

std::string OperationTimes::table(double step_seconds, double peak_flops) const {
  std::vector<std::pair<std::string, Row>> sorted(rows_.begin(), rows_.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.seconds > b.second.seconds;
  });
  std::string out = format_line("%-30s %7s %10s %7s %10s %7s   one step of this rank, %.2f ms\n",
                                "operation", "calls", "ms", "%", "GFLOP/s", "of peak",
                                step_seconds * 1e3);
  double sum = 0;
  for (const auto& [name, row] : sorted) {
    sum += row.seconds;
    out += format_line("%-30s %7lld %10.3f %7.2f", name.c_str(), static_cast<long long>(row.calls),
                       row.seconds * 1e3, 100 * row.seconds / step_seconds);
    if (row.flops > 0) {
      const double rate = row.flops / row.seconds;
      out += format_line(" %10.1f %6.1f%%", rate / 1e9, 100 * rate / peak_flops);
    }
    out += "\n";
  }
  out += format_line("%-30s %7s %10.3f %7.2f\n", "between instructions", "",
                     (step_seconds - sum) * 1e3, 100 * (1 - sum / step_seconds));
  return out;
}

}  // namespace moetrain
