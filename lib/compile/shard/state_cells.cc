// Finds which ops overwrite which states and merges states that must agree.
#include "compile/shard/state_cells.h"

#include "base/error.h"

namespace moetrain {

StateCells::StateCells(Problem& problem, const Anchors& anchors) : problem_(problem) {
  const Graph& graph = problem.graph();
  const size_t n = graph.nodes.size();
  parent_.resize(n);
  for (size_t i = 0; i < n; ++i) parent_[i] = static_cast<int>(i);
  writes_.resize(n);
  writers_.resize(n);
  members_.resize(n);
  layouts_.resize(n);
  accumulates_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    int first = -1;
    for (int operand : problem.op_class(static_cast<int>(i)).rule.in_place) {
      if (operand < 0) continue;
      const int state = state_of(static_cast<int>(i), operand);
      if (state < 0) continue;
      writes_[i].push_back({state, operand});
      if (first < 0) first = state;
      parent_[group(state)] = group(first);
    }
  }
  std::vector<Diagnostic> faults;
  std::vector<int> decided_by(n, -1);
  for (size_t i = 0; i < n; ++i) {
    const int g = group(static_cast<int>(i));
    if (problem.is_state(static_cast<int>(i))) members_[g].push_back(static_cast<int>(i));
    for (const Use& write : writes_[i]) {
      auto& writers = writers_[group(write.node)];
      if (writers.empty() || writers.back() != static_cast<int>(i)) {
        writers.push_back(static_cast<int>(i));
      }
      const bool sums = graph.nodes[i].tag.phase != Phase::kUpdate &&
                        problem.op_class(static_cast<int>(i)).rule.operands.size() > 1;
      accumulates_[group(write.node)] |= sums;
    }
    const auto& row = anchors.nodes[i].leaf;
    if (!row || !problem.is_state(static_cast<int>(i))) continue;
    if (!layouts_[g]) {
      layouts_[g] = *row;
      decided_by[g] = static_cast<int>(i);
    } else if (*layouts_[g] != *row) {
      const int other = decided_by[g];
      faults.push_back(
          {"", cat("states '", graph.nodes[other].name, "' and '", graph.nodes[i].name,
                   "' are updated together and need one layout, but the rows of ",
                   anchors.nodes[other].origin, " and ", anchors.nodes[i].origin, " give ",
                   to_string(problem.mesh(), *layouts_[g]), " and ",
                   to_string(problem.mesh(), *row), "; give both the same")});
    }
  }
  if (!faults.empty()) throw UserError(faults);
}

int StateCells::group(int state) const {
  while (parent_[state] != state) {
    parent_[state] = parent_[parent_[state]];
    state = parent_[state];
  }
  return state;
}

int StateCells::state_of(int node, int operand) const {
  Value v = problem_.graph().nodes[node].inputs[operand];
  while (!problem_.is_state(v.node)) {
    const Rule& rule = problem_.op_class(v.node).rule;
    const int source = rule.in_place[v.output];
    if (source < 0) return -1;
    v = problem_.graph().nodes[v.node].inputs[source];
  }
  return v.node;
}

}  // namespace moetrain
