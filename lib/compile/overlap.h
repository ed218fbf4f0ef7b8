// Overlap: the order of a segment's work that hides transfers behind computation.
#pragma once

#include <cstdint>
#include <vector>

namespace moetrain {

/// One piece of work as the list scheduler sees it.
struct Task {
  double seconds = 0;
  int lane = 0;            ///< 0 computes; lanes run their tasks in the order they are given
  std::vector<int> after;  ///< earlier tasks it needs
  int64_t pinned = 0;      ///< bytes of operands that stay alive while it waits
  bool at_once = false;    ///< others wait for it elsewhere: nothing that could start goes before it
  int side = 0;            ///< 0 or 1: which of two merged passes
  double early = kAnyTime;  ///< how much computation of its side may still lie before it (a transfer: before
                            ///< its first user) when it runs: what comes early keeps its memory for longer
  static constexpr double kAnyTime = 1e300;
};

/// Orders tasks (given in a valid order) for a host that issues them one after the other: a task of the
/// compute lane holds the host until what it needs has ended and then for its own length, a task of another
/// lane is only queued. Transfers go out as soon as what they need is there; among computations the one with
/// the longest way still behind it comes first, except that nothing runs further ahead of the given order
/// than its `early` says. Work that no transfer waits for (weight gradients, mostly)
/// is filler: it runs where the lane would idle, the one whose length is closest to the gap, and otherwise
/// when the operands of all waiting fillers hold more than `store_bytes`, oldest first, or at the end.
/// How much longer than predicted transfers are reckoned to take, and how well a filler must fit, is tried in
/// several ways; taken is the order that is shortest for the predicted and for longer and uneven transfers.
/// Deterministic. Without tasks on other lanes the order stays as it is.
std::vector<int> overlap_order(const std::vector<Task>& tasks, int64_t store_bytes);

/// When each task runs if the host issues them in `order`.
struct Timing {
  std::vector<double> begin, end;  ///< by task
  double length = 0;
  double waited = 0;  ///< of the compute lane for others, also at the end
};
Timing time_order(const std::vector<Task>& tasks, const std::vector<int>& order);

}  // namespace moetrain
