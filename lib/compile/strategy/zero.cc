// ZeRO: what belongs to the optimizer is spread over the ranks that would hold copies, fast axes major, so
// that each scatter sends little over slow links. Gradients wait as pending sums until the update.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/text.h"
#include "compile/strategy/row_makers.h"
#include "compile/strategy/strategies.h"
#include "graph/op.h"

namespace moetrain {
namespace {

using Dims = std::vector<Names>;

size_t literals(const std::string& pattern) {
  return pattern.size() - static_cast<size_t>(std::count(pattern.begin(), pattern.end(), '*'));
}

/// The layout the rows give a parameter: the user's first, then the longest pattern.
Dims layout_of(const Rows& rows, const Node& parameter) {
  const LayoutRow* best = nullptr;
  for (const LayoutRow& row : rows) {
    if (row.kind != LayoutRow::Kind::kState || row.out.size() != 1) continue;
    if (best != nullptr && (row.locked < best->locked ||
                            (row.locked == best->locked &&
                             literals(row.pattern) <= literals(best->pattern)))) {
      continue;
    }
    if (glob_match(row.pattern, parameter.name)) best = &row;
  }
  Dims dims = best == nullptr ? Dims{} : best->out[0];
  dims.resize(parameter.outputs[0].shape.size());
  return dims;
}

std::vector<Axis> atoms_of(const Mesh& mesh, const Names& names) {
  std::vector<Axis> atoms;
  for (const std::string& name : names) {
    if (name == "-" || name == "None") continue;
    const auto run = resolve_axis(mesh, name);
    atoms.insert(atoms.end(), run.begin(), run.end());
  }
  return atoms;
}

/// `parameter` with all of `free` on the first dim that divides; or, where none does, each axis on the
/// first dim that takes it. Vectors stay whole: norms are too small to be worth scattering.
Dims spread_over(const Mesh& mesh, const Dims& parameter, const Shape& shape,
                 const std::vector<Axis>& free) {
  Dims spread = parameter;
  if (free.empty() || shape.size() < 2) return spread;
  for (size_t d = 0; d < spread.size(); ++d) {
    if (shape[d] % (mesh.size(atoms_of(mesh, spread[d])) * mesh.size(free)) != 0) continue;
    for (Axis a : free) spread[d].push_back(mesh.atoms[a].name);
    return spread;
  }
  for (Axis a : free) {
    for (size_t d = 0; d < spread.size(); ++d) {
      const int64_t parts = mesh.size(atoms_of(mesh, spread[d])) * mesh.atoms[a].size;
      if (shape[d] % parts != 0) continue;
      spread[d].push_back(mesh.atoms[a].name);
      break;
    }
  }
  return spread;
}

}  // namespace

void zero_redundancy(const ParallelOptions& options, const Graph& graph, Rows& rows) {
  const Mesh mesh = build_mesh(options);
  // Minor atoms are neighbours. Scattering by them first leaves a node's share for the slow links, and
  // what is scattered first must be major: the layouts need no exchange behind the scatters.
  std::vector<Axis> data;
  for (Axis a = static_cast<Axis>(mesh.atoms.size()); a-- > 0;) {
    if (mesh.atoms[a].size > 1) data.push_back(a);
  }
  // The optimizer's states name their parameter; every parameter has a first moment or a master.
  std::unordered_map<std::string, const Node*> states;
  for (const Node& node : graph.nodes) {
    if (std::string_view(node.op->name) == "state") states.emplace(node.name, &node);
  }
  Rows more;
  for (const Node& node : graph.nodes) {
    if (std::string_view(node.op->name) != "state") continue;
    const auto moment = states.find("m:" + node.name);
    const bool own = states.contains("master:" + node.name);
    const bool trained = moment != states.end() || own || states.contains("grad:" + node.name);
    if (!trained && options.zero != 3) continue;
    if (node.name.find(':') != std::string::npos || !glob_match("*.weight", node.name)) continue;
    const Dims parameter = layout_of(rows, node);
    const Shape& shape = node.outputs[0].shape;
    // Axes that would hold copies of the parameter.
    std::vector<Axis> free = data;
    for (const Names& names : parameter) {
      for (Axis a : atoms_of(mesh, names)) std::erase(free, a);
    }
    const Dims spread = options.zero == 0 ? parameter : spread_over(mesh, parameter, shape, free);
    for (const char* kind : {"master:", "m:", "v:"}) {
      // Where the parameter is its own master, moments must lie like it.
      const bool like_parameter = !own && options.zero != 3;
      if (states.contains(kind + node.name)) {
        more.push_back(
            strategy_state("zero", kind + node.name, like_parameter ? parameter : spread));
      }
    }
    // Sums are finished where the optimizer wants them, nowhere else.
    std::map<char, Names> axes, squares;
    for (size_t d = 0; d < spread.size(); ++d) {
      axes[static_cast<char>('A' + d)] = squares[static_cast<char>('a' + d)] = spread[d];
    }
    if (trained && (own || options.zero == 3)) {
      more.push_back(strategy_factors("zero", "settle:" + node.name, axes));
      more.push_back(strategy_factors("zero", "sum_squares:" + node.name, squares));
    }
    if (options.zero == 3) more.push_back(strategy_state("zero", node.name, spread));
  }
  more.push_back(strategy_factors("zero", "settle:load.*", {{'A', {}}}));
  rows.insert(rows.end(), more.begin(), more.end());
}

}  // namespace moetrain
