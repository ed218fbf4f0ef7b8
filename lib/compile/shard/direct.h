// Direct exchange: who sends which box to whom when one round of messages turns a layout into another.
#pragma once

#include <vector>

#include "compile/shard/layout.h"
#include "compile/shard/reshard.h"

namespace moetrain {

/// One box of the global tensor that a rank takes from a holder (perhaps itself).
struct Piece {
  int from = 0;  ///< world rank that holds it before
  Box box;       ///< in global coordinates
};

/// The pieces of a direct exchange between layouts with equal pending sums. Holders are chosen by a
/// fixed rule all ranks agree on: oneself, else a rank of the same node, else another; among equals
/// by the receiver's index, so that equal holders share the load.
class DirectExchange {
 public:
  DirectExchange(const Mesh& mesh, int ranks_per_node, const Shape& shape, const Layout& from,
                 const Layout& to);
  /// The axes whose place changes: messages stay inside groups of them.
  const std::vector<Axis>& axes() const { return axes_; }
  /// What `rank` receives, in a fixed order (its boxes tile its new slice).
  std::vector<Piece> incoming(int rank) const;
  /// What `rank` sends to others, one entry per (receiver, piece): `from` is the receiver here.
  std::vector<Piece> outgoing(int rank) const;
  /// Time of the slowest receiver, and the largest number of bytes received from others.
  CollectiveCost cost(const LinkModel& links, int64_t element_size) const;

 private:
  /// Members of one group by number of the source slice they hold.
  using Holders = std::vector<std::vector<int>>;
  Holders holders_in(const std::vector<int>& group) const;
  std::vector<Piece> incoming(int rank, int index, const Holders& holders) const;
  template <class F>
  void for_each_piece(int rank, int index, const Holders& holders, F f) const;

  const Mesh& mesh_;
  int ranks_per_node_;
  Shape shape_;
  Layout from_, to_;
  std::vector<Axis> axes_;
};

}  // namespace moetrain
