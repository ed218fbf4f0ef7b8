// Boxes of a direct exchange and its price.
#include "compile/shard/direct.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

std::vector<Axis> moved_axes(const Layout& from, const Layout& to) {
  std::set<Axis> moved;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    const auto& a = from.dims[d];
    const auto& b = to.dims[d];
    size_t same = 0;
    while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
    moved.insert(a.begin() + same, a.end());
    moved.insert(b.begin() + same, b.end());
  }
  return {moved.begin(), moved.end()};
}

/// The holder of one source slice for `rank`, by the fixed rule.
int choose_holder(const std::vector<int>& holders, int rank, int index, int ranks_per_node) {
  size_t near = 0;
  for (int h : holders) {
    if (h == rank) return rank;
    near += h / ranks_per_node == rank / ranks_per_node;
  }
  if (near == 0) return holders[static_cast<size_t>(index) % holders.size()];
  size_t skip = static_cast<size_t>(index) % near;
  for (int h : holders) {
    if (h / ranks_per_node == rank / ranks_per_node && skip-- == 0) return h;
  }
  return rank;
}

}  // namespace

DirectExchange::DirectExchange(const Mesh& mesh, int ranks_per_node, const Shape& shape,
                               const Layout& from, const Layout& to)
    : mesh_(mesh),
      ranks_per_node_(std::max(1, ranks_per_node)),
      shape_(shape),
      from_(from),
      to_(to),
      axes_(moved_axes(from, to)) {
  MT_CHECK(from.partial == to.partial && from.partial_max == to.partial_max,
           "a direct exchange finishes no sum");
}

DirectExchange::Holders DirectExchange::holders_in(const std::vector<int>& group) const {
  int64_t slices = 1;
  for (const auto& axes : from_.dims) slices *= mesh_.size(axes);
  Holders holders(slices);
  for (int member : group) {
    int64_t number = 0;
    for (const auto& axes : from_.dims) {
      number = number * mesh_.size(axes) + mesh_.index_along(member, axes);
    }
    holders[number].push_back(member);
  }
  return holders;
}

std::vector<Piece> DirectExchange::incoming(int rank) const {
  return incoming(rank, mesh_.index_along(rank, axes_), holders_in(mesh_.group(rank, axes_)));
}

template <class F>
void DirectExchange::for_each_piece(int rank, int index, const Holders& holders, F f) const {
  const Box target = slice_of(mesh_, to_, shape_, rank);
  const size_t dims = shape_.size();
  std::vector<int64_t> parts(dims), width(dims), first(dims), count(dims);
  for (size_t d = 0; d < dims; ++d) {
    parts[d] = mesh_.size(from_.dims[d]);
    width[d] = shape_[d] / parts[d];
    first[d] = width[d] == 0 ? 0 : target.begin[d] / width[d];
    count[d] = width[d] == 0 || target.extent[d] == 0
                   ? 0
                   : (target.begin[d] + target.extent[d] - 1) / width[d] - first[d] + 1;
  }
  Piece piece;
  piece.box.begin.resize(dims);
  piece.box.extent.resize(dims);
  std::vector<int64_t> at(first);
  for (int64_t left = numel(count); left > 0; --left) {
    int64_t number = 0;
    for (size_t d = 0; d < dims; ++d) {
      number = number * parts[d] + at[d];
      const int64_t begin = std::max(target.begin[d], at[d] * width[d]);
      const int64_t end = std::min(target.begin[d] + target.extent[d], (at[d] + 1) * width[d]);
      piece.box.begin[d] = begin;
      piece.box.extent[d] = end - begin;
    }
    MT_CHECK(!holders[number].empty(), "nobody holds slice ", number, " of ",
             to_string(mesh_, from_), " for rank ", rank);
    piece.from = choose_holder(holders[number], rank, index, ranks_per_node_);
    f(piece);
    for (size_t d = dims; d-- > 0;) {
      if (++at[d] < first[d] + count[d]) break;
      at[d] = first[d];
    }
  }
}

std::vector<Piece> DirectExchange::incoming(int rank, int index, const Holders& holders) const {
  std::vector<Piece> pieces;
  for_each_piece(rank, index, holders, [&](const Piece& piece) { pieces.push_back(piece); });
  return pieces;
}

std::vector<Piece> DirectExchange::outgoing(int rank) const {
  std::vector<Piece> sent;
  const std::vector<int> group = mesh_.group(rank, axes_);
  const Holders holders = holders_in(group);
  for (size_t i = 0; i < group.size(); ++i) {
    const int member = group[i];
    if (member == rank) continue;
    for (const Piece& piece : incoming(member, static_cast<int>(i), holders)) {
      if (piece.from == rank) sent.push_back({member, piece.box});
    }
  }
  return sent;
}

CollectiveCost DirectExchange::cost(const LinkModel& links, int64_t element_size) const {
  CollectiveCost worst;
  const std::vector<int> group = mesh_.group(mesh_.first_rank, axes_);
  const Holders holders = holders_in(group);
  for (size_t i = 0; i < group.size(); ++i) {
    const int rank = group[i];
    int64_t messages[2] = {0, 0}, bytes[2] = {0, 0};  // inside the node, between nodes
    for_each_piece(rank, static_cast<int>(i), holders, [&](const Piece& piece) {
      if (piece.from == rank) return;
      const int far = piece.from / ranks_per_node_ != rank / ranks_per_node_;
      messages[far] += 1;
      bytes[far] += numel(piece.box.extent) * element_size;
    });
    const double intra = static_cast<double>(messages[0]) * links.intra_latency +
                         static_cast<double>(bytes[0]) / links.intra_bandwidth;
    const double inter = static_cast<double>(messages[1]) * links.inter_latency +
                         static_cast<double>(bytes[1]) / links.inter_bandwidth;
    worst.seconds = std::max({worst.seconds, intra, inter});
    worst.bytes = std::max(worst.bytes, bytes[0] + bytes[1]);
  }
  // Every member looks through the sizes of all others, most of them zero, and a wide group waits for
  // its slowest rank.
  constexpr size_t kNarrow = 16;
  if (group.size() > kNarrow) {
    worst.seconds += static_cast<double>(group.size() - kNarrow) * 0.1 * links.intra_latency;
  }
  return worst;
}

}  // namespace moetrain
