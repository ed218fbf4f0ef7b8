// Rank arithmetic on a mesh.
#include "base/mesh.h"

#include "base/error.h"

namespace moetrain {

int Mesh::size() const {
  int n = 1;
  for (const Atom& atom : atoms) n *= atom.size;
  return n;
}

int Mesh::size(const std::vector<Axis>& axes) const {
  int n = 1;
  for (Axis a : axes) n *= atoms[a].size;
  return n;
}

std::vector<int> Mesh::coordinate(int rank) const {
  int rest = rank - first_rank;
  MT_CHECK(rest >= 0 && rest < size(), "rank ", rank, " is not of this mesh");
  std::vector<int> c(atoms.size());
  for (size_t i = atoms.size(); i-- > 0;) {
    c[i] = rest % atoms[i].size;
    rest /= atoms[i].size;
  }
  return c;
}

int Mesh::rank_at(const std::vector<int>& c) const {
  int rank = 0;
  for (size_t i = 0; i < atoms.size(); ++i) rank = rank * atoms[i].size + c[i];
  return first_rank + rank;
}

int Mesh::index_along(int rank, const std::vector<Axis>& axes) const {
  const std::vector<int> c = coordinate(rank);
  int index = 0;
  for (Axis a : axes) index = index * atoms[a].size + c[a];
  return index;
}

std::vector<int> Mesh::group(int rank, const std::vector<Axis>& axes) const {
  std::vector<int> c = coordinate(rank);
  const int n = size(axes);
  std::vector<int> ranks(n);
  for (int i = 0; i < n; ++i) {
    int rest = i;
    for (size_t k = axes.size(); k-- > 0;) {
      c[axes[k]] = rest % atoms[axes[k]].size;
      rest /= atoms[axes[k]].size;
    }
    ranks[i] = rank_at(c);
  }
  return ranks;
}

const std::vector<Axis>& Mesh::resolve(const std::string& name) const {
  auto at = names.find(name);
  if (at != names.end()) return at->second;
  std::vector<std::string> known;
  for (const auto& [key, axes] : names) known.push_back(key);
  const std::string near = nearest(name, known);
  throw UserError(cat("LAYOUT_AXIS_UNKNOWN: no mesh axis '", name, "'; the axes are ",
                      join(known, ", "), near.empty() ? "" : "; did you mean '" + near + "'?"));
}

}  // namespace moetrain
