// Layout: how one global tensor is spread over a mesh, as a value with a text form.
#pragma once

#include <string>
#include <vector>

#include "base/box.h"
#include "base/mesh.h"
#include "base/tensor.h"
#include "graph/graph.h"

namespace moetrain {

/// Per dim an ordered list of mesh axes that split it (left axis major), and the axes over which
/// the true value is the sum (or maximum) of the ranks' values. An axis appears at most once.
/// Axes that appear nowhere hold copies. Axes of size 1 are dropped by normalise().
struct Layout {
  std::vector<std::vector<Axis>> dims;
  std::vector<Axis> partial;      ///< pending sum, sorted
  std::vector<Axis> partial_max;  ///< pending maximum, sorted

  bool operator==(const Layout&) const = default;
  auto operator<=>(const Layout&) const = default;
  bool has_partial() const { return !partial.empty() || !partial_max.empty(); }
};

/// Atoms of an axis name (a run like "dp", or one atom by its own name); throws UserError with the
/// nearest valid name for an unknown one.
std::vector<Axis> resolve_axis(const Mesh& mesh, const std::string& name);
/// The layout of a tensor of `rank` dims that every rank holds whole.
Layout replicated(size_t rank);
/// Drops axes of size 1 and sorts the partial sets.
Layout normalise(const Mesh& mesh, Layout layout);
/// Text form `[tp, -, (dp ep)] +{dp cp} max{tp}`; parse_layout reads it back.
std::string to_string(const Mesh& mesh, const Layout& layout);
/// One dim's entry of that text: "-", "dp" or "(dp ep)".
std::string axes_text(const Mesh& mesh, const std::vector<Axis>& axes);
Layout parse_layout(const Mesh& mesh, const std::string& text);
/// Throws UserError (ids LAYOUT_RANK, LAYOUT_AXIS_REUSED, LAYOUT_DIVIDE, ...) unless
/// `layout` fits a tensor of `shape`. `what` names the tensor in the message.
void check_layout(const Mesh& mesh, const Layout& layout, const Shape& shape,
                  const std::string& what);
/// Shape of every rank's slice. Dim 1 of a ragged type is left alone.
Shape local_shape(const Mesh& mesh, const Layout& layout, const Type& global);

/// The slice that `rank` holds.
Box slice_of(const Mesh& mesh, const Layout& layout, const Shape& global, int rank);

}  // namespace moetrain
