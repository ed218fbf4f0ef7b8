// Breadth-first spreading of layouts from the anchors (README, last section).
#include "compile/shard/search.h"

#include <algorithm>

#include "base/error.h"

namespace moetrain {
namespace {

/// The letter of the experts in a ragged term of the rule, or 0.
char expert_letter(const Rule& rule) {
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    if (rule.ragged_operands[i]) return rule.operands[i][0][0];
  }
  for (size_t r = 0; r < rule.results.size(); ++r) {
    if (rule.ragged_results[r]) return rule.results[r][0][0];
  }
  return 0;
}

}  // namespace

Search::Search(Problem& problem, const Anchors& anchors, double repeats)
    : problem_(problem), anchors_(anchors), repeats_(repeats), cells_(problem, anchors) {
  const Graph& graph = problem.graph();
  const size_t n = graph.nodes.size();
  chosen_.assign(n, nullptr);
  origin_.resize(n);
  follower_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) follower_[i] = follows_forward(static_cast<int>(i));
  find_experts();
}

/// Which dispatch every ragged op belongs to, and the axes its experts are spread over: those of a
/// factor row on any op of the family, else those of an expert weight's row, else none.
void Search::find_experts() {
  const Graph& graph = problem_.graph();
  dispatch_of_.assign(graph.nodes.size(), -1);
  std::map<int, bool> by_factor;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int n = static_cast<int>(i);
    if (!problem_.touches_ragged(n)) continue;
    const Node& node = graph.nodes[i];
    const Rule& rule = problem_.op_class(n).rule;
    for (size_t k = 0; k < node.inputs.size() && dispatch_of_[n] < 0; ++k) {
      if (rule.ragged_operands[k]) dispatch_of_[n] = dispatch_of_[node.inputs[k].node];
    }
    if (dispatch_of_[n] < 0) dispatch_of_[n] = n;
    const int d = dispatch_of_[n];
    const char letter = expert_letter(rule);
    const auto factor = anchors_.nodes[i].factors.find(letter);
    if (factor != anchors_.nodes[i].factors.end() && !by_factor[d]) {
      expert_axes_[d] = factor->second;
      by_factor[d] = true;
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const auto& leaf = anchors_.nodes[node.inputs[k].node].leaf;
      const auto& term = rule.operands[k];
      if (!leaf || rule.ragged_operands[k] || expert_axes_.contains(d)) continue;
      for (size_t dim = 0; dim < term.size(); ++dim) {
        if (term[dim] == std::string(1, letter)) expert_axes_[d] = leaf->dims[dim];
      }
    }
  }
}

/// A vjp node whose factors are its forward node's: same letters, same sizes.
bool Search::follows_forward(int n) const {
  const int forward = problem_.graph().nodes[n].forward;
  if (forward < 0 || problem_.is_leaf(n)) return false;
  const OpClass& own = problem_.op_class(n);
  const OpClass& other = problem_.op_class(forward);
  for (size_t f = 0; f < own.rule.factors.size(); ++f) {
    const size_t at = other.rule.factors.find(own.rule.factors[f]);
    if (at == std::string::npos || other.sizes[at] != own.sizes[f]) return false;
  }
  return true;
}

std::map<char, std::vector<Axis>> Search::locked(int n) const {
  std::map<char, std::vector<Axis>> factors = anchors_.nodes[n].factors;
  const int forward = problem_.graph().nodes[n].forward;
  const Rule& rule = problem_.op_class(n).rule;
  auto take = [&](char letter, const std::vector<Axis>& axes) {
    if (rule.factors.find(letter) != std::string::npos) factors.emplace(letter, axes);
  };
  if (forward >= 0 && follower_[n]) {
    for (const auto& [letter, axes] : anchors_.nodes[forward].factors) take(letter, axes);
  }
  const int d = dispatch_of_[n];
  if (d < 0) return factors;
  const auto experts = expert_axes_.find(d);
  const char letter = expert_letter(rule);
  if (experts != expert_axes_.end() && letter != 0) {
    factors[letter] = experts->second;
  } else if (rule.moves_tokens()) {
    factors[letter] = {};
  }
  // The plan was made for one placement of the tokens: whoever reads it uses the same.
  if (rule.moves_tokens() && n != d && chosen_[d] != nullptr) {
    for (char token : {'b', 's'}) {
      const auto at = chosen_[d]->factors.axes.find(token);
      factors[token] = at == chosen_[d]->factors.axes.end() ? std::vector<Axis>{} : at->second;
    }
  }
  return factors;
}

void Search::set(int n, const Decision* decision, std::string origin, int depth) {
  chosen_[n] = decision;
  origin_[n] = std::move(origin);
  waiting_.erase(n);
  queue_.emplace(depth, n);
}

void Search::set_leaf(int n, const Layout& layout, const std::string& origin, int depth) {
  FactorAxes factors;
  project(problem_, n, false, 0, layout, factors);
  factors.partial = layout.partial;
  const Decision* decision = problem_.decision(problem_.class_of(n), factors);
  MT_CHECK(decision != nullptr && decision->layouts.results[0] == layout, "leaf '",
           problem_.graph().nodes[n].name, "' cannot be laid out as ",
           to_string(problem_.mesh(), layout));
  set(n, decision, origin, depth);
}

void Search::adapt_leaf(int leaf, const Layout& demand, int from, int depth) {
  if (problem_.is_state(leaf) && cells_.accumulates(leaf)) return;
  Layout layout = demand;
  layout.partial.clear();
  layout.partial_max.clear();
  set_leaf(leaf, layout, "wanted by " + problem_.graph().nodes[from].name, depth);
  if (!problem_.is_state(leaf) || cells_.layout(leaf)) return;
  cells_.settle(leaf, layout);
  for (int member : cells_.members(leaf)) {
    if (chosen_[member] == nullptr) set_leaf(member, layout, origin_[leaf], depth);
  }
}

/// After an in-place op decided: its states, and the other ops that overwrite them, follow.
void Search::settle_cells(int n, int depth) {
  for (const Use& write : cells_.writes(n)) {
    if (!cells_.layout(write.node)) {
      cells_.settle(write.node, chosen_[n]->layouts.operands[write.operand]);
    }
    for (int member : cells_.members(write.node)) {
      if (chosen_[member] == nullptr) {
        set_leaf(member, *cells_.layout(write.node),
                 "holds what " + problem_.graph().nodes[n].name + " adds", depth);
      }
    }
    for (int writer : cells_.writers(write.node)) {
      if (chosen_[writer] == nullptr) try_decide(writer, depth, n);
    }
  }
}

/// An op on a state whose layout is known has no choice. False when some state is still open.
bool Search::decide_in_place(int n, int depth) {
  FactorAxes factors;
  std::string origin;
  for (const Use& write : cells_.writes(n)) {
    const auto& layout = cells_.layout(write.node);
    if (!layout) return false;
    project(problem_, n, true, write.operand, *layout, factors);
    for (Axis a : layout->partial) {
      if (std::find(factors.partial.begin(), factors.partial.end(), a) == factors.partial.end()) {
        factors.partial.push_back(a);
      }
    }
    if (!factors.partial.empty()) {
      factors.linear_group = problem_.op_class(n).rule.linear_group_of(write.operand);
    }
    origin = problem_.graph().nodes[write.node].name;
  }
  const Decision* decision = problem_.decision(problem_.class_of(n), factors);
  for (const Use& write : cells_.writes(n)) {
    const Layout& layout = *cells_.layout(write.node);
    if (decision == nullptr || decision->layouts.operands[write.operand] != layout) {
      const Node& node = problem_.graph().nodes[n];
      const Node& state = problem_.graph().nodes[write.node];
      throw UserError(cat(node.op->name, " '", node.name, "' overwrites '", state.name, "' ",
                          to_string(state.outputs[0]), " in place and cannot do so in layout ",
                          to_string(problem_.mesh(), layout), " (row of ",
                          anchors_.nodes[write.node].origin, "); leave that dim whole"));
    }
  }
  set(n, decision, "in place on " + origin, depth);
  settle_cells(n, depth);
  return true;
}

void Search::seed() {
  const Graph& graph = problem_.graph();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int n = static_cast<int>(i);
    const NodeAnchor& anchor = anchors_.nodes[i];
    if (anchor.leaf) {
      set_leaf(n, *anchor.leaf, "anchor: " + anchor.origin, 0);
    } else if (problem_.is_state(n) && cells_.layout(n)) {
      set_leaf(n, *cells_.layout(n), "updated together with an anchored state", 0);
    } else if (anchor.number != 0) {
      waiting_.insert(n);
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (cells_.overwrites(static_cast<int>(i))) decide_in_place(static_cast<int>(i), 0);
  }
}

bool Search::accumulates(int n) const {
  const auto& writes = cells_.writes(n);
  return std::any_of(writes.begin(), writes.end(), [&](const Use& write) {
    return cells_.accumulates(write.node) && !cells_.layout(write.node);
  });
}

bool Search::may_decide(int n) const {
  const Node& node = problem_.graph().nodes[n];
  const Rule& rule = problem_.op_class(n).rule;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (rule.ragged_operands[k] && chosen_[node.inputs[k].node] == nullptr) return false;
  }
  return !follower_[n] || chosen_[node.forward] != nullptr;
}

bool Search::all_data_known(int n) const {
  for (Value v : problem_.graph().nodes[n].inputs) {
    if (chosen_[v.node] == nullptr && !problem_.is_leaf(v.node)) return false;
  }
  return true;
}

void Search::try_decide(int n, int depth, int from) {
  if (chosen_[n] != nullptr || problem_.is_leaf(n)) return;
  if (cells_.overwrites(n) && decide_in_place(n, depth)) return;
  if (!may_decide(n)) return;
  if (follower_[n]) {
    set(n, follow(n), "follows " + problem_.graph().nodes[problem_.graph().nodes[n].forward].name,
        depth);
    settle_cells(n, depth);
    return;
  }
  int data_inputs = 0;
  for (Value v : problem_.graph().nodes[n].inputs) data_inputs += !problem_.is_leaf(v.node);
  if (all_data_known(n) || (data_inputs <= 1 && !accumulates(n))) {
    decide(n, depth, from);
  } else {
    waiting_.insert(n);
  }
}

void Search::decide(int n, int depth, int from) {
  // An accumulator takes what is added to it; its readers pay once, in the update.
  const std::vector<Known> known = known_of(n, accumulates(n));
  const Decision* decision = best(n, known, nullptr);
  const NodeAnchor& anchor = anchors_.nodes[n];
  const std::string why = anchor.number != 0 ? "anchor: " + anchor.origin
                          : from >= 0        ? "propagated from " + problem_.graph().nodes[from].name
                                             : "default";
  set(n, decision, why, depth);
  settle_cells(n, depth);
}

void Search::visit_neighbours(int depth, int n) {
  const Node& node = problem_.graph().nodes[n];
  for (int gradient : problem_.gradients_of(n)) try_decide(gradient, depth + 1, n);
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    for (const Use& use : problem_.uses(n, static_cast<int>(r))) {
      try_decide(use.node, depth + 1, n);
    }
  }
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    const int producer = node.inputs[k].node;
    if (chosen_[producer] != nullptr) continue;
    if (problem_.is_leaf(producer)) {
      adapt_leaf(producer, chosen_[n]->layouts.operands[k], n, depth + 1);
    } else {
      try_decide(producer, depth + 1, n);
    }
  }
}

void Search::spread() {
  seed();
  const bool nothing_anchored = queue_.empty() && waiting_.empty();
  if (nothing_anchored) {
    for (int n = 0; n < static_cast<int>(chosen_.size()); ++n) {
      chosen_[n] = problem_.decision(problem_.class_of(n), {});
      origin_[n] = "default";
    }
    return;
  }
  const int count = static_cast<int>(problem_.graph().nodes.size());
  int first_open = 0;
  while (true) {
    while (!queue_.empty()) {
      const auto [depth, n] = *queue_.begin();
      queue_.erase(queue_.begin());
      visit_neighbours(depth, n);
    }
    // Nothing moves by itself any more: the first op that waits decides from what is known.
    int next = -1;
    for (int n : waiting_) {
      if (chosen_[n] == nullptr && may_decide(n)) {
        next = n;
        break;
      }
    }
    for (int n = first_open; n < count && next < 0; ++n) {
      if (chosen_[n] != nullptr) {
        if (n == first_open) ++first_open;
      } else if (!problem_.is_leaf(n) && may_decide(n)) {
        next = n;
      }
    }
    if (next < 0) break;
    if (follower_[next]) {
      try_decide(next, 0, -1);
    } else {
      const std::vector<Known> known = known_of(next, false);
      const int from = known.empty() || !known[0].operand
                           ? -1
                           : problem_.graph().nodes[next].inputs[known[0].index].node;
      decide(next, 0, from);
    }
  }
  for (int n = 0; n < count; ++n) {
    if (chosen_[n] == nullptr) {
      MT_CHECK(problem_.is_leaf(n), "'", problem_.graph().nodes[n].name, "' was never decided");
      set_leaf(n, replicated(problem_.graph().nodes[n].outputs[0].shape.size()), "default", 0);
    }
  }
  queue_.clear();
}

}  // namespace moetrain
