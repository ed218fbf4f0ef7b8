// Validity of the grid notation and its translation.
#include "compile/shard/mesh_view.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr const char* kInterleaved = "interleaved_parallel";

}  // namespace

MeshView::MeshView(std::vector<int> device_matrix, std::vector<std::string> alias_name,
                   std::vector<int> rank_list, int stage_ranks)
    : matrix_(std::move(device_matrix)),
      names_(std::move(alias_name)),
      ranks_(std::move(rank_list)) {
  std::vector<Diagnostic> faults;
  auto fault = [&](std::string text) { faults.push_back({"", std::move(text)}); };
  if (matrix_.size() != names_.size() || matrix_.empty()) {
    throw UserError(cat("LAYOUT_ARG: device_matrix (", join(matrix_, ", "), ") has ",
                        matrix_.size(), " entries and alias_name (", join(names_, ", "), ") ",
                        names_.size(), "; give one name per axis"));
  }
  int ranks = 1;
  std::set<std::string> seen;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (matrix_[i] < 1) {
      fault(cat("LAYOUT_ARG: axis '", names_[i], "' has size ", matrix_[i]));
    }
    if (names_[i].empty() || names_[i] == "None") {
      fault(cat("LAYOUT_ALIAS: '", names_[i], "' cannot name an axis; it means \"not split\""));
    }
    if (!seen.insert(names_[i]).second) {
      fault(cat("LAYOUT_ALIAS: '", names_[i], "' names two axes; use different names"));
    }
    if (names_[i] == kInterleaved) {
      if (i + 1 != names_.size()) {
        fault(cat("LAYOUT_INTERLEAVE: ", kInterleaved, " must be the last axis"));
      }
    } else {
      ranks *= std::max(1, matrix_[i]);
    }
  }
  if (ranks_.empty()) {
    ranks_.resize(ranks);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  const std::set<int> distinct(ranks_.begin(), ranks_.end());
  if (static_cast<int>(ranks_.size()) != ranks || distinct.size() != ranks_.size()) {
    fault(cat("LAYOUT_RANKS: rank_list has ", ranks_.size(), " ranks (", distinct.size(),
              " different), device_matrix has ", ranks, "; list every rank once"));
  }
  if (stage_ranks > 0 && ranks != stage_ranks) {
    fault(cat("LAYOUT_DEVICES: device_matrix (", join(matrix_, ", "), ") makes ", ranks,
              " ranks, but a pipeline stage has ", stage_ranks));
  }
  if (!faults.empty()) throw UserError(faults);
}

int MeshView::axis(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at != names_.end()) return static_cast<int>(at - names_.begin());
  const std::string near = nearest(name, names_);
  throw UserError(cat("LAYOUT_AXIS_UNKNOWN: no axis '", name, "'; the axes are ",
                      join(names_, ", "), near.empty() ? "" : "; did you mean '" + near + "'?"));
}

std::vector<std::vector<int>> MeshView::tensor_map(const Entries& entries) const {
  std::vector<std::vector<int>> map;
  std::set<int> used;
  for (const auto& entry : entries) {
    std::vector<int> numbers;
    for (const std::string& name : entry) {
      if (name == "None") continue;
      const int i = axis(name);
      if (!used.insert(i).second) {
        throw UserError(cat("LAYOUT_AXIS_REUSED: axis '", name,
                            "' is used more than once; an axis splits one dim at most"));
      }
      numbers.push_back(static_cast<int>(names_.size()) - 1 - i);
    }
    if (numbers.empty()) numbers.push_back(-1);
    map.push_back(std::move(numbers));
  }
  return map;
}

Mesh MeshView::mesh() const {
  for (size_t p = 0; p < ranks_.size(); ++p) {
    if (ranks_[p] != ranks_[0] + static_cast<int>(p)) {
      throw UserError(cat("LAYOUT_RANKS: rank_list ", join(ranks_, ", "),
                          " is not consecutive; ranks are numbered by the launcher, so order the "
                          "axes of the mesh (or the host file) instead"));
    }
  }
  Mesh mesh;
  mesh.first_rank = ranks_[0];
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == kInterleaved) continue;
    mesh.names[names_[i]] = {static_cast<Axis>(mesh.atoms.size())};
    mesh.atoms.push_back({names_[i], matrix_[i]});
  }
  return mesh;
}

Layout MeshView::layout(const Entries& entries) const {
  tensor_map(entries);  // unknown and repeated axes
  const Mesh grid = mesh();
  Layout layout;
  for (const auto& entry : entries) {
    layout.dims.emplace_back();
    for (const std::string& name : entry) {
      if (name == "None") continue;
      if (name == kInterleaved) {
        throw UserError(cat("LAYOUT_INTERLEAVE: ", kInterleaved,
                            " cuts a rank's own slice to overlap two halves; pairs of micro-batches "
                            "are for that (parallel.schedule: fused_1f1b with a smaller "
                            "micro_batch_size, and parallel.overlap), not layouts"));
      }
      layout.dims.back().push_back(grid.resolve(name)[0]);
    }
  }
  return normalise(grid, std::move(layout));
}

std::vector<int> MeshView::physical_split(const Entries& entries) const {
  std::vector<int> split;
  for (const auto& entry : entries) {
    int parts = 1;
    for (const std::string& name : entry) {
      if (name != "None" && name != kInterleaved) parts *= matrix_[axis(name)];
    }
    split.push_back(parts);
  }
  return split;
}

ExpandedMap expand_tuples(const std::vector<int>& device_matrix,
                          const std::vector<std::vector<int>>& map, const Shape& shape) {
  MT_CHECK(map.size() == shape.size(), "map of ", map.size(), " dims, shape ", to_string(shape));
  ExpandedMap expanded;
  for (size_t d = 0; d < map.size(); ++d) {
    int64_t rest = shape[d];
    for (size_t i = 0; i < map[d].size(); ++i) {
      const int number = map[d][i];
      expanded.map.push_back(number);
      const bool last = i + 1 == map[d].size();
      const int64_t size = last || number < 0
                               ? rest
                               : device_matrix[device_matrix.size() - 1 - number];
      MT_CHECK(size > 0 && rest % size == 0, "dim ", d, " of ", to_string(shape));
      expanded.shape.push_back(size);
      rest /= size;
    }
  }
  return expanded;
}

}  // namespace moetrain
