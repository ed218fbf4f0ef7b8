// States that are zero although their memory does not say so yet: who adds to one next overwrites it.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/device/device.h"

namespace moetrain {

/// A launch that adds to states, as one that writes what it would have added.
struct Overwrite {
  const OpDef* op = nullptr;
  Attrs attrs;
  size_t operands = 0;      ///< so many of the launch's first ones
  std::vector<int> states;  ///< slots of the states, one per result
};

/// The launch without its addition; nothing for launches that do not add, or that add integers.
std::optional<Overwrite> overwriting(const Launch& launch, const Plan& plan);

/// A gradient sum is cleared once an update and added to at once afterwards: writing zeros and reading
/// them again would be two passes over all gradients. So a clear only marks the state, the next launch
/// that adds to it overwrites it, and anybody else who touches it first has it cleared really.
/// x takes the place of 0 + x: the same number, except that -0 keeps its sign. Used by one thread.
class ZeroStates {
 public:
  /// Finds the states that are cleared as a whole by one launch and added to by others; `memory`: of
  /// root slots. `device` must outlive this.
  ZeroStates(const Plan& plan, Device& device, const std::vector<std::byte*>& memory);

  /// Whether clearing this root slot may wait.
  bool may_wait(int root) const { return states_.count(root) > 0; }
  /// The state, whose clearing may wait, counts as zero from here on.
  void clear(int root) { states_.at(root).zero = true; }
  /// Whether all of them counted as zero without being so; the caller overwrites all of them now. If only
  /// some did, work on `lane` is about to add to them: clears those.
  bool take(std::span<const int> roots, Lane& lane);
  /// Work on `lane` is about to touch the state: clears it if it only counts as zero.
  void settle(int root, Lane& lane);

 private:
  struct State {
    KernelChoice kernel;
    Tensor memory;
    bool zero = false;
    Event cleared;  ///< really, on the compute lane
  };
  Device& device_;
  const Attrs none_;
  std::map<int, State> states_;  // by root slot
};

}  // namespace moetrain
