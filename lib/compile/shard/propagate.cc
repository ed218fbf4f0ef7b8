// Propagation as a whole: bind rows, spread, refine, and report.
#include "compile/shard/propagate.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "compile/shard/search.h"

namespace moetrain {
namespace {

/// A user's anchor that disagrees with an anchored neighbour is legal; the price is worth telling.
void note_conflicts(Problem& problem, const Anchors& anchors, const Search& search,
                    std::vector<std::string>& notes) {
  const Graph& graph = problem.graph();
  auto anchored = [&](int n) { return !anchors.nodes[n].origin.empty(); };
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    for (size_t k = 0; k < graph.nodes[n].inputs.size(); ++k) {
      const Value v = graph.nodes[n].inputs[k];
      if (!anchored(n) || !anchored(v.node)) continue;
      if (!anchors.nodes[n].locked && !anchors.nodes[v.node].locked) continue;
      const int type = problem.op_class(n).operand_types[k];
      const int from = search.chosen(v.node)->results[v.output];
      const int to = search.chosen(n)->operands[k];
      if (from == to || problem.type(type).ragged) continue;
      const ReshardPlan& plan = problem.plan(type, from, to);
      if (plan.bytes == 0) continue;
      char micros[32];
      std::snprintf(micros, sizeof micros, "%.1f", plan.seconds * 1e6);
      notes.push_back(cat("RESHARD ", graph.nodes[v.node].name, " -> ", graph.nodes[n].name, " ",
                          human_bytes(static_cast<double>(plan.bytes)), " ", micros,
                          " us ", to_string(problem.mesh(), plan)));
    }
  }
}

}  // namespace

ShardingResult propagate(const Graph& graph, const Mesh& mesh, const LinkModel& links,
                         const std::vector<LayoutRow>& rows, const PropagateOptions& options) {
  Problem problem(graph, mesh, links);
  Anchors anchors = bind_rows(problem, rows);
  Search search(problem, anchors, options.repeats);
  search.spread();
  if (options.refine) search.refine(10);

  ShardingResult result;
  result.notes = std::move(anchors.notes);
  note_conflicts(problem, anchors, search, result.notes);
  result.reshard_seconds = search.total_seconds();
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const Decision& decision = *search.chosen(n);
    result.nodes.push_back({decision.factors, decision.layouts, search.origin(n),
                            !anchors.nodes[n].origin.empty()});
  }
  return result;
}

}  // namespace moetrain
