// From the `parallel` section of a configuration to the compiler's mesh and layout rows.
#include "train/parallel.h"

#include <algorithm>

#include "compile/strategy/auto_layouts.h"
#include "compile/strategy/parallel_options.h"
#include "compile/strategy/strategies.h"
#include "compile/strategy/user.h"
#include "train/session.h"

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

/// Chooses on the training graph of a model with one layer of each kind, whatever the session is for: all
/// sessions of a run agree on where parameters lie.
AutoChoice search_layouts(const Config& config, const ParallelOptions& options,
                           const LinkModel& links) {
  ModelConfig model = config.model;
  const int64_t dense = std::min(model.first_k_dense_replace, model.num_hidden_layers);
  const int64_t moe = model.num_hidden_layers - dense;
  const int64_t short_dense = std::min<int64_t>(dense, 1), short_moe = std::min<int64_t>(moe, 1);
  model.first_k_dense_replace = short_dense;
  model.num_hidden_layers = short_dense + short_moe;
  Config shortened = config;
  shortened.model = model;
  shortened.parallel.pipeline = shortened.parallel.virtual_stages = 1;
  shortened.parallel.stage_layout = {};
  const Graph graph = build_graph(model, graph_options(shortened, {}));
  LayoutSearch search;
  search.links = links;
  search.memory_limit = static_cast<double>(config.compute.memory_limit.value_or(0));
  search.micro_batches = static_cast<double>(config.micro_batches());
  search.repeats = [=](int layer) -> double {
    if (layer < 0 || layer >= short_dense + short_moe) return 1;
    return static_cast<double>(layer < short_dense ? dense : moe);
  };
  return choose_layouts(options, graph, search);
}

}  // namespace

Mesh config_mesh(const Config& config) { return build_mesh(options_of(config)); }

std::vector<LayoutRow> config_rows(const Config& config, const Graph& graph, const LinkModel& links) {
  const ParallelOptions options = options_of(config);
  if (config.parallel.layouts == LayoutChoice::kManual) return strategy_rows(options, graph);
  return chosen_rows(search_layouts(config, options, links), options, graph);
}

}  // namespace moetrain
