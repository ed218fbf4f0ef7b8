// Small meshes for the tests of this room.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/mesh.h"

namespace moetrain {

/// A mesh of the given axes, major first, every atom named by itself.
inline Mesh make_mesh(const std::vector<std::pair<std::string, int>>& axes) {
  Mesh mesh;
  for (const auto& [name, size] : axes) {
    mesh.names[name] = {static_cast<Axis>(mesh.atoms.size())};
    mesh.atoms.push_back({name, size});
  }
  return mesh;
}

}  // namespace moetrain
