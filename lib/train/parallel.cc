// From the `parallel` section of a configuration to the compiler's mesh and layout rows.
#include "train/parallel.h"

namespace moetrain {

Mesh config_mesh(const Config& config) {
  (void)config;
  return {};
}

std::vector<LayoutRow> config_rows(const Config& config, const Mesh& mesh) {
  (void)config;
  (void)mesh;
  return {};
}

}  // namespace moetrain
