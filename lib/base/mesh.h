// Mesh: the named axes of one pipeline stage's ranks, and the arithmetic between ranks and coordinates.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace moetrain {

/// Index of an atomic axis of a Mesh.
using Axis = int;

/// The ranks of one stage as a grid of atomic axes, major first: rank = first_rank + mixed-radix
/// number of the coordinates. A name ("dp") stands for a run of atoms (major first).
struct Mesh {
  struct Atom {
    std::string name;
    int size = 1;
  };
  std::vector<Atom> atoms;
  std::map<std::string, std::vector<Axis>> names;
  int first_rank = 0;

  /// Number of ranks.
  int size() const;
  /// Ranks along all of `axes` (1 when empty).
  int size(const std::vector<Axis>& axes) const;
  /// Coordinate of `rank` (a world rank of this stage) along every atom.
  std::vector<int> coordinate(int rank) const;
  int rank_at(const std::vector<int>& coordinate) const;
  /// Mixed-radix index of `rank` along `axes`, left axis major.
  int index_along(int rank, const std::vector<Axis>& axes) const;
  /// The world ranks that differ from `rank` only along `axes`, ordered by index_along.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;
  /// Atoms of a name; throws UserError (with the nearest valid name) for an unknown one.
  const std::vector<Axis>& resolve(const std::string& name) const;
};

}  // namespace moetrain
