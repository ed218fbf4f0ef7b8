// Clears that wait for whoever adds first.
#include "runtime/zero_states.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/projections.h"
#include "ops/update.h"

namespace moetrain {

namespace {

Attrs without_addition(const Attrs& attrs) {
  Attrs rest;
  for (const auto& [name, value] : attrs.items()) {
    if (name != "accumulate") rest.set(name, value);
  }
  return rest;
}

}  // namespace

std::optional<Overwrite> overwriting(const Launch& launch, const Plan& plan) {
  if (launch.op == &ops::kAccumulate) {
    if (!is_float(plan.slots[launch.in[0]].type.dtype)) return std::nullopt;
    return Overwrite{&ops::kAssign, {}, 2, {launch.in[0]}};
  }
  const bool product = launch.op == &ops::kMatmulDw || launch.op == &ops::kGroupedMatmulDw ||
                       launch.op == &ops::kEmbeddingGrad || launch.op == &ops::kProjectionsDw;
  if (!product || launch.attrs.integer_or("accumulate", 0) == 0) return std::nullopt;
  const size_t operands = launch.in.size() - launch.out.size();  // an accumulator for every result
  return Overwrite{launch.op, without_addition(launch.attrs), operands,
                   {launch.in.begin() + static_cast<std::ptrdiff_t>(operands), launch.in.end()}};
}

ZeroStates::ZeroStates(const Plan& plan, Device& device, const std::vector<std::byte*>& memory)
    : device_(device) {
  std::set<int> cleared, added;
  for (const Segment& segment : plan.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const auto* launch = std::get_if<Launch>(&instruction.what);
      if (launch == nullptr) continue;
      if (launch->op == &ops::kClear) {
        const int root = root_slot(plan, launch->out[0]);
        const Slot& state = plan.slots[root];
        if (state.home == Home::kState && state.bytes == plan.slots[launch->out[0]].bytes)
          cleared.insert(root);
      } else if (const auto overwrite = overwriting(*launch, plan)) {
        for (int s : overwrite->states) added.insert(root_slot(plan, s));
      }
    }
  }
  for (int root : cleared) {
    if (added.count(root) == 0) continue;
    const Type& type = plan.slots[root].type;
    State& state = states_[root];
    state.kernel = device_.choose(ops::kClear, none_, {&type, 1}, {&type, 1});
    MT_CHECK(state.kernel.workspace_bytes == 0, "clearing wants a workspace");
    state.memory = {memory[root], type.dtype, type.shape};
  }
}

bool ZeroStates::take(std::span<const int> roots, Lane& lane) {
  bool all = true;
  for (int root : roots) all &= states_.count(root) > 0 && states_.at(root).zero;
  for (int root : roots) {
    if (all)
      states_.at(root).zero = false;
    else
      settle(root, lane);
  }
  return all;
}

void ZeroStates::settle(int root, Lane& lane) {
  const auto at = states_.find(root);
  if (at == states_.end()) return;
  State& state = at->second;
  Lane& compute = device_.lane(kComputeLane);
  if (std::exchange(state.zero, false)) {
    device_.launch(state.kernel, ops::kClear, none_, {&state.memory, 1}, {&state.memory, 1},
                   nullptr, compute);
    state.cleared = compute.record();
  }
  if (&lane != &compute) lane.wait(state.cleared);
}

}  // namespace moetrain
