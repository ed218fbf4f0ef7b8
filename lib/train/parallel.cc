// From the `parallel` section of a configuration to the compiler's mesh and layout rows.
#include "train/parallel.h"

#include "compile/strategy/parallel_options.h"
#include "compile/strategy/strategies.h"
#include "compile/strategy/user.h"

namespace moetrain {

namespace {

std::vector<LayoutRow> user_rows(const ParallelConfig& p) {
  std::vector<LayoutRow> rows;
  auto layouts = [](const std::vector<LayoutSpec>& specs) {
    std::vector<UserLayout> out;
    for (const LayoutSpec& spec : specs) out.push_back(spec.dims);
    return out;
  };
  for (const ShardRow& row : p.shard) {
    switch (row.form) {
      case ShardRow::kFactors:
        rows.push_back(
            user_factors(row.pattern, {row.factors.begin(), row.factors.end()}, row.where));
        break;
      case ShardRow::kLayouts:
        rows.push_back(user_uses(row.pattern, layouts(row.in), layouts(row.out), row.where));
        break;
      case ShardRow::kParam:
        rows.push_back(user_parameter(row.pattern, row.layout.dims, row.where));
        break;
    }
  }
  return rows;
}

ParallelOptions options_of(const Config& config) {
  const ParallelConfig& p = config.parallel;
  ParallelOptions options;
  options.data = static_cast<int>(*p.data);
  options.context = static_cast<int>(p.context);
  options.tensor = static_cast<int>(p.tensor);
  options.expert = static_cast<int>(p.expert);
  options.sequence_parallel = *p.sequence_parallel;
  options.tp_extend_ep = *p.tp_extend_ep;
  options.zero = static_cast<int>(p.zero);
  for (const auto& [name, size] : p.mesh) options.mesh.emplace_back(name, static_cast<int>(size));
  options.user_rows = user_rows(p);
  return options;
}

}  // namespace

Mesh config_mesh(const Config& config) { return build_mesh(options_of(config)); }

std::vector<LayoutRow> config_rows(const Config& config, const Graph& graph) {
  return strategy_rows(options_of(config), graph);
}

}  // namespace moetrain
