// The propagation problem as numbers: op classes, interned layouts, decisions and edge prices.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/shard/reshard.h"
#include "compile/shard/rule.h"
#include "graph/op.h"

namespace moetrain {

/// Nodes with equal op, rule and types: what makes their decisions comparable.
struct OpClass {
  Rule rule;
  std::vector<int64_t> sizes;            ///< of factors
  std::vector<int> operand_types, result_types;  ///< type numbers
  Cost cost;                             ///< of the whole op
};

/// One assignment of one class, with everything that follows from it. The *dual* of an operand is the
/// layout its gradient comes out in, that of a result the layout its gradient is wanted in.
struct Decision {
  FactorAxes factors;
  NodeLayouts layouts;
  std::vector<int> operands, results, operand_duals, result_duals;  ///< layout numbers
  double compute_seconds = 0;
  double memory = 0;  ///< bytes of operands and results on one rank
};

/// A use of a value: operand `operand` of node `node`.
struct Use {
  int node, operand;
};

class Problem {
 public:
  Problem(const Graph& graph, const Mesh& mesh, const LinkModel& links);

  const Graph& graph() const { return graph_; }
  const Mesh& mesh() const { return planner_.mesh(); }
  int class_of(int node) const { return node_class_[node]; }
  const OpClass& op_class(int node) const { return classes_[node_class_[node]]; }
  const std::vector<Use>& uses(int node, int output) const { return uses_[node][output]; }
  /// The nodes that some vjp made from `node`.
  const std::vector<int>& gradients_of(int node) const { return gradients_[node]; }
  /// Does a gradient flow back through this node's float results?
  bool differentiable(int node) const { return differentiable_[node]; }
  bool is_leaf(int node) const { return graph_.nodes[node].inputs.empty(); }
  bool is_state(int node) const;
  bool touches_ragged(int node) const;

  int layout_number(const Layout& layout);
  const Layout& layout(int number) const { return layouts_[number]; }
  const Type& type(int number) const { return types_[number]; }

  /// The decision for a class, or null when the assignment is impossible. Lives as long as this.
  const Decision* decision(int op_class, const FactorAxes& factors);

  struct Edge {
    double seconds = 0;        ///< of communication
    double local_seconds = 0;  ///< of slices and zero fills
  };
  /// Price of turning a value of type number `type` from one layout into another.
  Edge edge(int type, int from, int to);
  /// The dual layout `own` of a parameter's use, without the pending sums over axes that do not split
  /// the parameter's own layout `state`.
  int waiting_dual(int own, int state);
  const ReshardPlan& plan(int type, int from, int to);
  /// Cheapest way to finish the pending sums of a result, and the way back for its gradient.
  double finish_seconds(int type, int layout, int dual, bool gradient);

 private:
  int class_number(int node);
  int type_number(const Type& type);

  const Graph& graph_;
  ReshardPlanner planner_;
  std::vector<Type> types_;
  std::map<std::tuple<DType, Shape, bool>, int> type_numbers_;
  std::deque<Layout> layouts_;
  std::map<Layout, int> layout_numbers_;
  std::deque<OpClass> classes_;
  std::map<std::string, int> class_numbers_;
  std::vector<int> node_class_;
  std::vector<std::vector<std::vector<Use>>> uses_;
  std::vector<std::vector<int>> gradients_;
  std::vector<char> differentiable_;
  std::map<std::pair<int, std::string>, std::unique_ptr<Decision>> decisions_;
  std::unordered_map<uint64_t, Edge> edges_;
  std::map<std::tuple<int, int, int, bool>, double> finish_;
};

}  // namespace moetrain
