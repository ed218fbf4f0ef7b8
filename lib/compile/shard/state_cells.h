// Cells: states together with the ops that overwrite them; all of a cell share one layout.
#pragma once

#include <optional>
#include <vector>

#include "compile/shard/anchors.h"
#include "compile/shard/problem.h"

namespace moetrain {

/// States tied by in-place ops (AdamW's p, m, v) form one group. A group's layout comes from a row on
/// any member; without one it is settled by the first op that decides.
class StateCells {
 public:
  StateCells(Problem& problem, const Anchors& anchors);

  /// The state whose memory operand `operand` of `node` is, or -1.
  int state_of(int node, int operand) const;
  /// Does `node` overwrite any state?
  bool overwrites(int node) const { return !writes_[node].empty(); }
  /// What `node` overwrites: `node` of an entry is the state, `operand` the operand of this node.
  const std::vector<Use>& writes(int node) const { return writes_[node]; }
  /// Ops that overwrite members of the group of `state`.
  const std::vector<int>& writers(int state) const { return writers_[group(state)]; }
  const std::vector<int>& members(int state) const { return members_[group(state)]; }
  const std::optional<Layout>& layout(int state) const { return layouts_[group(state)]; }
  void settle(int state, const Layout& layout) { layouts_[group(state)] = layout; }
  /// Is this state without a row summed into during backward? Then what is added decides its layout.
  bool accumulates(int state) const { return accumulates_[group(state)]; }

 private:
  int group(int state) const;

  Problem& problem_;
  mutable std::vector<int> parent_;
  std::vector<std::vector<Use>> writes_;
  std::vector<std::vector<int>> writers_, members_;
  std::vector<std::optional<Layout>> layouts_;
  std::vector<char> accumulates_;
};

}  // namespace moetrain
