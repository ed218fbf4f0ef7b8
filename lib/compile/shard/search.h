// The search behind propagate(): breadth-first decisions from the anchors, then refinement.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/shard/anchors.h"
#include "compile/shard/candidates.h"
#include "compile/shard/problem.h"
#include "compile/shard/state_cells.h"

namespace moetrain {

/// What a candidate costs beside its decided neighbours. Compared field by field; communication within
/// one percent counts as equal.
struct Score {
  bool possible = true;
  double communication = 0;  ///< forward and gradient edges, and finishing what readers cannot take
  double compute = 0;        ///< own work and local copies
  double memory = 0;
  int moves = 0;             ///< edges that need a redistribution
};

class Search {
 public:
  /// `repeats`: PropagateOptions.
  Search(Problem& problem, const Anchors& anchors, double repeats = 1);
  /// Decides every node.
  void spread();
  /// Re-decides nodes whose neighbours allow something cheaper; the total falls with every change.
  void refine(int sweeps);

  const Decision* chosen(int node) const { return chosen_[node]; }
  const std::string& origin(int node) const { return origin_[node]; }
  /// Communication of all edges under the present decisions.
  double total_seconds();

 private:
  using Queue = std::set<std::pair<int, int>>;  // (depth, node)

  void seed();
  void find_experts();
  void visit_neighbours(int depth, int node);
  void try_decide(int node, int depth, int from);
  /// Does it sum into a state whose layout is still open?
  bool accumulates(int node) const;
  bool may_decide(int node) const;
  bool all_data_known(int node) const;
  bool follows_forward(int node) const;
  void set(int node, const Decision* decision, std::string origin, int depth);
  void set_leaf(int node, const Layout& layout, const std::string& origin, int depth);
  void adapt_leaf(int leaf, const Layout& demand, int from, int depth);
  void settle_cells(int node, int depth);
  bool decide_in_place(int node, int depth);
  const Decision* follow(int node);
  void decide(int node, int depth, int from);
  std::vector<Known> known_of(int node, bool operands_only);
  const Decision* best(int node, const std::vector<Known>& known, const FactorAxes* first);
  /// Stops adding up (and says impossible) once communication is beyond `limit`.
  Score score(int node, const Decision& candidate, const std::vector<Known>& known,
              double limit = 1e300);
  bool once_per_update(int reader) const;
  /// Weight of readers without a layout that no pending sum passes: 0 for none.
  double readers_that_finish(int node, int output) const;
  bool improve(int node);
  std::map<char, std::vector<Axis>> locked(int node) const;

  Problem& problem_;
  const Anchors& anchors_;
  const double repeats_;
  StateCells cells_;
  std::vector<const Decision*> chosen_;
  std::vector<std::string> origin_;
  std::vector<char> follower_;   ///< decided by its forward node
  std::vector<int> dispatch_of_;  ///< node -> the dispatch whose rows it touches, or -1
  std::map<int, std::vector<Axis>> expert_axes_;  ///< by dispatch
  Queue queue_;
  std::set<int> waiting_;
  std::map<std::vector<int>, const Decision*> memory_;
};

}  // namespace moetrain
