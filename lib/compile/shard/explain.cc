// Text of sharding decisions.
#include "compile/shard/explain.h"

#include <cstdio>
#include <map>
#include <vector>

#include "base/error.h"
#include "graph/op.h"

namespace moetrain {
namespace {

std::string micros(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  return text;
}

std::string result_text(const Mesh& mesh, const NodeSharding& node) {
  std::vector<std::string> list;
  for (const Layout& layout : node.layouts.results) list.push_back(to_string(mesh, layout));
  return join(list, ", ");
}

/// All that a diff compares, in one line.
std::string line_of(const Mesh& mesh, const NodeSharding& node) {
  std::vector<std::string> operands;
  for (const Layout& layout : node.layouts.operands) operands.push_back(to_string(mesh, layout));
  return cat(to_string(mesh, node.factors), "  (", join(operands, ", "), ") -> ",
             result_text(mesh, node));
}

/// Lines by op name; equal names are numbered in graph order.
std::map<std::string, std::pair<std::string, std::string>> lines_of(const Graph& graph,
                                                                    const Mesh& mesh,
                                                                    const ShardingResult& result) {
  std::map<std::string, std::pair<std::string, std::string>> lines;
  std::map<std::string, int> seen;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    std::string name = graph.nodes[n].name;
    const int count = seen[name]++;
    if (count > 0) name += cat("#", count);
    lines[name] = {line_of(mesh, result.nodes[n]), result.nodes[n].origin};
  }
  return lines;
}

}  // namespace

std::string explain(const Graph& graph, const Mesh& mesh, const LinkModel& links,
                    const ShardingResult& result, const std::string& pattern) {
  ReshardPlanner planner(mesh, links);
  std::string text;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const NodeSharding& sharding = result.nodes[n];
    if (!glob_match(pattern, node.name)) continue;
    text += cat(node.name, "  ", node.op->name, " ", to_string(mesh, sharding.factors), "  ",
                sharding.origin, "\n");
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const Value v = node.inputs[k];
      const Layout& from = result.nodes[v.node].layouts.results[v.output];
      const Layout& to = sharding.layouts.operands[k];
      const Type& type = graph.type(v);
      if (from == to || type.ragged) continue;
      const ReshardPlan& plan = planner.plan(type.shape, type.dtype, from, to);
      text += cat("  operand ", k, " ", to_string(mesh, to), " from ", graph.nodes[v.node].name, " ",
                  to_string(mesh, from), ": ", to_string(mesh, plan), " ",
                  human_bytes(static_cast<double>(plan.bytes)), ", ", micros(plan.seconds), "\n");
    }
    text += "  result " + result_text(mesh, sharding) + "\n";
  }
  for (const std::string& note : result.notes) text += "note: " + note + "\n";
  return text + cat("redistributions of one pass over the graph: ",
                    micros(result.reshard_seconds), "\n");
}

std::string explain_diff(const Graph& before_graph, const Mesh& before_mesh,
                         const ShardingResult& before, const Graph& after_graph,
                         const Mesh& after_mesh, const ShardingResult& after) {
  const auto old_lines = lines_of(before_graph, before_mesh, before);
  const auto new_lines = lines_of(after_graph, after_mesh, after);
  std::string text;
  for (const auto& [name, old_line] : old_lines) {
    const auto at = new_lines.find(name);
    if (at == new_lines.end()) {
      text += "- " + name + "  " + old_line.first + "\n";
    } else if (at->second.first != old_line.first) {
      text += cat("  ", name, "\n    - ", old_line.first, "  ", old_line.second, "\n    + ",
                  at->second.first, "  ", at->second.second, "\n");
    }
  }
  for (const auto& [name, new_line] : new_lines) {
    if (!old_lines.contains(name)) text += "+ " + name + "  " + new_line.first + "\n";
  }
  return text;
}

}  // namespace moetrain
