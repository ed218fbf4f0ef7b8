// Layouts in the device_matrix / alias_name / tensor_map notation many users know, and their conversion.
#pragma once

#include <string>
#include <vector>

#include "compile/shard/layout.h"

namespace moetrain {

/// Layout((4, 2), ("dp", "mp")): a grid of ranks, row-major, last axis fastest. An axis named
/// "interleaved_parallel" must come last; it cuts a rank's slice again and is no axis of ranks.
class MeshView {
 public:
  /// `rank_list` empty: 0, 1, 2, ... Throws UserError LAYOUT_ARG, LAYOUT_ALIAS, LAYOUT_RANKS,
  /// LAYOUT_INTERLEAVE; and LAYOUT_DEVICES if `stage_ranks` is given and differs.
  MeshView(std::vector<int> device_matrix, std::vector<std::string> alias_name,
           std::vector<int> rank_list = {}, int stage_ranks = 0);

  /// One entry per dim: "None" or one axis, or several (left axis major).
  using Entries = std::vector<std::vector<std::string>>;
  /// Per dim the axes counted from the right (dp of (dp, mp) is 1), {-1} for "None". Throws
  /// LAYOUT_AXIS_UNKNOWN and LAYOUT_AXIS_REUSED.
  std::vector<std::vector<int>> tensor_map(const Entries& entries) const;
  /// The ranks' axes as a Mesh (interleaved_parallel left out). Throws LAYOUT_RANKS if the list is not
  /// consecutive: ranks of a stage are numbered by the launcher.
  Mesh mesh() const;
  /// The layout on mesh(); throws LAYOUT_INTERLEAVE with a remedy if an entry uses that axis, which is
  /// a way of scheduling, not a way of placing data.
  Layout layout(const Entries& entries) const;
  /// World rank at a position of the grid.
  int rank_at(int position) const { return ranks_[position]; }
  /// Number of pieces each dim is cut into on ranks (interleaved_parallel counts as one).
  std::vector<int> physical_split(const Entries& entries) const;

 private:
  int axis(const std::string& name) const;

  std::vector<int> matrix_;
  std::vector<std::string> names_;
  std::vector<int> ranks_;
};

/// Tuple entries as virtual dims of one axis each: mesh sizes [8, 2, 4], map [[2], [1, 0]] and shape
/// [512, 1024] become map [2, 1, 0] and shape [512, 2, 512]. The minor axis keeps the remainder.
struct ExpandedMap {
  std::vector<int> map;
  Shape shape;
  bool operator==(const ExpandedMap&) const = default;
};
ExpandedMap expand_tuples(const std::vector<int>& device_matrix,
                          const std::vector<std::vector<int>>& map, const Shape& shape);

}  // namespace moetrain
