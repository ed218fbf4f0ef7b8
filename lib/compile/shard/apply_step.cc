// The meaning of every redistribution step, spelled out with boxes.
#include "compile/shard/apply_step.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "compile/shard/direct.h"

namespace moetrain {
namespace {

using Kind = ReshardStep::Kind;

/// Calls f(offset in a, offset in b) for every element of `part`, which lies in boxes a and b.
template <class F>
void for_each_in(const Box& part, const Box& a, const Box& b, F f) {
  const size_t dims = part.begin.size();
  std::vector<int64_t> at(dims, 0);
  for (int64_t left = numel(part.extent); left > 0; --left) {
    int64_t in_a = 0, in_b = 0;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t x = part.begin[d] + at[d];
      MT_CHECK(x >= a.begin[d] && x < a.begin[d] + a.extent[d] && x >= b.begin[d] &&
                   x < b.begin[d] + b.extent[d],
               "box outside its holder on dim ", d);
      in_a = in_a * a.extent[d] + x - a.begin[d];
      in_b = in_b * b.extent[d] + x - b.begin[d];
    }
    f(in_a, in_b);
    for (size_t d = dims; d-- > 0;) {
      if (++at[d] < part.extent[d]) break;
      at[d] = 0;
    }
  }
}

Box intersection(const Box& a, const Box& b) {
  Box part;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    part.begin.push_back(begin);
    part.extent.push_back(std::max<int64_t>(0, end - begin));
  }
  return part;
}

Box whole_box(const Shape& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

bool contains(const std::vector<Axis>& axes, Axis a) {
  return std::find(axes.begin(), axes.end(), a) != axes.end();
}

}  // namespace

RankArrays scatter(const Mesh& mesh, const Layout& layout, const Shape& shape,
                   const std::vector<double>& global) {
  RankArrays arrays;
  const Box all = whole_box(shape);
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.first_rank + i;
    const Box box = slice_of(mesh, layout, shape, rank);
    const bool holds_max = mesh.index_along(rank, layout.partial_max) == 0;
    const bool holds_sum = mesh.index_along(rank, layout.partial) == 0;
    std::vector<double> own(numel(box.extent),
                            holds_max ? 0 : -std::numeric_limits<double>::infinity());
    if (holds_max && holds_sum) {
      for_each_in(box, box, all, [&](int64_t a, int64_t b) { own[a] = global[b]; });
    }
    arrays.push_back(std::move(own));
  }
  return arrays;
}

std::vector<double> materialise(const Mesh& mesh, const Layout& layout, const Shape& shape,
                                const RankArrays& local) {
  // Finish the pending reductions, then let every rank write its slice.
  ReshardStep finish{Kind::kAllReduce, layout.partial, -1, -1, layout, layout, 0, 0};
  finish.after.partial.clear();
  RankArrays done = layout.partial.empty() ? local : apply_step(mesh, finish, shape, local, 1);
  if (!layout.partial_max.empty()) {
    ReshardStep maximum{Kind::kAllReduce, layout.partial_max, -1, -1, finish.after, finish.after,
                        0, 0};
    maximum.after.partial_max.clear();
    done = apply_step(mesh, maximum, shape, done, 1);
  }
  std::vector<double> global(numel(shape));
  std::vector<bool> written(global.size(), false);
  const Box all = whole_box(shape);
  for (int i = 0; i < mesh.size(); ++i) {
    const Box box = slice_of(mesh, layout, shape, mesh.first_rank + i);
    for_each_in(box, box, all, [&](int64_t a, int64_t b) {
      MT_CHECK(!written[b] || global[b] == done[i][a], "copies differ at element ", b);
      global[b] = done[i][a];
      written[b] = true;
    });
  }
  return global;
}

RankArrays apply_step(const Mesh& mesh, const ReshardStep& step, const Shape& shape,
                      const RankArrays& local, int ranks_per_node) {
  RankArrays result;
  const bool maximum = step.kind == Kind::kAllReduce && !step.axes.empty() &&
                       contains(step.before.partial_max, step.axes[0]);
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.first_rank + i;
    const Box mine = slice_of(mesh, step.after, shape, rank);
    std::vector<double> own(numel(mine.extent),
                            maximum ? -std::numeric_limits<double>::infinity() : 0);
    auto take = [&](int from, const Box& part, auto combine) {
      const Box theirs = slice_of(mesh, step.before, shape, from);
      const auto& data = local[from - mesh.first_rank];
      for_each_in(part, mine, theirs, [&](int64_t a, int64_t b) { combine(own[a], data[b]); });
    };
    auto copy = [](double& to, double from) { to = from; };
    switch (step.kind) {
      case Kind::kSlice: take(rank, mine, copy); break;
      case Kind::kKeepOnFirst:
        if (mesh.index_along(rank, step.axes) == 0) take(rank, mine, copy);
        break;
      case Kind::kAllGather:
      case Kind::kAllToAll:
        for (int member : mesh.group(rank, step.axes)) {
          take(member, intersection(mine, slice_of(mesh, step.before, shape, member)), copy);
        }
        break;
      case Kind::kAllReduce:
      case Kind::kReduceScatter:
        for (int member : mesh.group(rank, step.axes)) {
          take(member, mine, [&](double& to, double from) {
            to = maximum ? std::max(to, from) : to + from;
          });
        }
        break;
      case Kind::kDirect: {
        const DirectExchange direct(mesh, ranks_per_node, shape, step.before, step.after);
        for (const Piece& piece : direct.incoming(rank)) take(piece.from, piece.box, copy);
        break;
      }
    }
    result.push_back(std::move(own));
  }
  return result;
}

}  // namespace moetrain
