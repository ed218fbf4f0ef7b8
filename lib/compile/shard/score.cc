// What a decision costs beside its neighbours, the choice among candidates, and refinement (phase C).
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "compile/shard/search.h"

namespace moetrain {
namespace {

/// Is `a` better than `b`? Communication within one percent is a tie: then less work, less memory,
/// fewer redistributions; a full tie keeps the earlier candidate.
bool better(const Score& a, const Score& b) {
  if (a.possible != b.possible) return a.possible;
  const double slack = 0.01 * std::min(a.communication, b.communication) + 1e-12;
  if (std::abs(a.communication - b.communication) > slack) {
    return a.communication < b.communication;
  }
  if (std::abs(a.compute - b.compute) > 1e-6 * std::min(a.compute, b.compute)) {
    return a.compute < b.compute;
  }
  if (std::abs(a.memory - b.memory) > 1e-6 * std::min(a.memory, b.memory)) {
    return a.memory < b.memory;
  }
  return a.moves < b.moves;
}

}  // namespace

std::vector<Known> Search::known_of(int n, bool operands_only) {
  std::vector<Known> known;
  const Node& node = problem_.graph().nodes[n];
  const NodeAnchor& anchor = anchors_.nodes[n];
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    const Value v = node.inputs[k];
    const NodeAnchor& source = anchors_.nodes[v.node];
    Known item{true, static_cast<int>(k), -1, -1, once_per_update(n)};
    const auto use = anchor.in.find(static_cast<int>(k));
    if (use != anchor.in.end()) {
      item.layout = item.dual = problem_.layout_number(use->second);
    } else if (source.out && v.output == 0) {
      item.layout = item.dual = problem_.layout_number(*source.out);
    } else if (chosen_[v.node] != nullptr) {
      item.layout = chosen_[v.node]->results[v.output];
      item.dual = chosen_[v.node]->result_duals[v.output];
    } else {
      continue;
    }
    known.push_back(item);
  }
  if (operands_only) return known;
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    if (r == 0 && anchor.out) {
      const int number = problem_.layout_number(*anchor.out);
      known.push_back({false, 0, number, number, false});
      continue;
    }
    const size_t begin = known.size();
    for (const Use& use : problem_.uses(n, static_cast<int>(r))) {
      Known item{false, static_cast<int>(r), -1, -1, once_per_update(use.node)};
      const auto& in = anchors_.nodes[use.node].in;
      const auto at = in.find(use.operand);
      if (at != in.end()) {
        item.layout = item.dual = problem_.layout_number(at->second);
      } else if (chosen_[use.node] != nullptr) {
        item.layout = chosen_[use.node]->operands[use.operand];
        item.dual = problem_.differentiable(use.node)
                        ? chosen_[use.node]->operand_duals[use.operand]
                        : -1;
      } else {
        continue;
      }
      // Readers that want the same share one redistribution.
      const auto same = std::find_if(known.begin() + static_cast<std::ptrdiff_t>(begin), known.end(),
                                     [&](const Known& k) {
                                       return k.layout == item.layout && k.dual == item.dual;
                                     });
      if (same == known.end()) {
        known.push_back(item);
      } else {
        same->once &= item.once;
      }
    }
  }
  return known;
}

bool Search::once_per_update(int reader) const {
  return problem_.graph().nodes[reader].tag.phase == Phase::kUpdate;
}

double Search::readers_that_finish(int n, int output) const {
  double weight = 0;
  for (const Use& use : problem_.uses(n, output)) {
    const bool finishes = chosen_[use.node] == nullptr &&
                          problem_.op_class(use.node).rule.linear_group_of(use.operand) < 0;
    if (finishes) weight = std::max(weight, once_per_update(use.node) ? 1 / repeats_ : 1.0);
  }
  return weight;
}

Score Search::score(int n, const Decision& candidate, const std::vector<Known>& known,
                    double limit) {
  const OpClass& c = problem_.op_class(n);
  const bool gradient = problem_.differentiable(n);
  Score score;
  score.compute = candidate.compute_seconds;
  score.memory = candidate.memory;
  for (const Known& k : known) {
    if (score.communication > limit) break;
    const int type = k.operand ? c.operand_types[k.index] : c.result_types[k.index];
    const int own = k.operand ? candidate.operands[k.index] : candidate.results[k.index];
    const int own_dual = k.operand ? candidate.operand_duals[k.index] : candidate.result_duals[k.index];
    if (problem_.type(type).ragged) {
      if (own != k.layout) {
        score.possible = false;
        return score;
      }
      continue;
    }
    const Problem::Edge forward =
        k.operand ? problem_.edge(type, k.layout, own) : problem_.edge(type, own, k.layout);
    const double weight = k.once ? 1 / repeats_ : 1;
    score.communication += weight * forward.seconds;
    score.compute += weight * forward.local_seconds;
    score.moves += own != k.layout;
    if (!gradient || k.dual < 0 || !is_float(problem_.type(type).dtype)) continue;
    if (k.operand) {
      const int producer = problem_.graph().nodes[n].inputs[k.index].node;
      if (!problem_.differentiable(producer)) continue;
      // A parameter's gradient waits as a pending sum until the step ends; only what splits the
      // parameter itself has to be scattered here and now.
      const int from = problem_.is_state(producer)
                           ? problem_.waiting_dual(own_dual, k.dual)
                           : own_dual;
      score.communication += problem_.edge(type, from, k.dual).seconds;
    } else {
      score.communication += problem_.edge(type, k.dual, own_dual).seconds;
    }
  }
  for (size_t r = 0; r < candidate.results.size() && score.communication <= limit; ++r) {
    const double weight = readers_that_finish(n, static_cast<int>(r));
    if (problem_.type(c.result_types[r]).ragged || weight == 0) continue;
    score.communication += weight * problem_.finish_seconds(c.result_types[r], candidate.results[r],
                                                            candidate.result_duals[r], gradient);
  }
  if (score.communication > limit) score.possible = false;
  return score;
}

const Decision* Search::best(int n, const std::vector<Known>& known, const FactorAxes* first) {
  const std::map<char, std::vector<Axis>> lock = locked(n);
  const Node& node = problem_.graph().nodes[n];
  std::vector<int> key{problem_.class_of(n), problem_.differentiable(n),
                       node.tag.phase == Phase::kForward, -5};
  for (const auto& [letter, axes] : lock) {
    key.push_back(letter);
    key.insert(key.end(), axes.begin(), axes.end());
    key.push_back(-3);
  }
  for (Value v : node.inputs) {
    key.push_back(2 * problem_.is_state(v.node) + problem_.differentiable(v.node));
  }
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    const double weight = readers_that_finish(n, static_cast<int>(r));
    key.push_back(weight == 0 ? 0 : weight < 1 ? 1 : 2);
  }
  for (const Known& k : known) {
    key.insert(key.end(), {k.operand, k.index, k.layout, k.dual, k.once});
  }
  const bool memorable = first == nullptr;
  if (memorable) {
    const auto at = memory_.find(key);
    if (at != memory_.end()) return at->second;
  }
  CandidateOptions options;
  options.locked = &lock;
  options.first = first;
  options.use_idle_axes = node.tag.phase == Phase::kForward && node.forward < 0 && !known.empty() &&
                          !problem_.touches_ragged(n);
  const Decision* winner = nullptr;
  Score winning;
  for (const Decision* candidate : candidates(problem_, n, known, options)) {
    const double limit = winner == nullptr ? 1e300 : 1.02 * winning.communication + 1e-9;
    const Score own = score(n, *candidate, known, limit);
    if (own.possible && (winner == nullptr || better(own, winning))) {
      winner = candidate;
      winning = own;
    }
  }
  if (winner == nullptr) {
    std::vector<std::string> have;
    for (const Known& k : known) {
      have.push_back(cat(k.operand ? "operand " : "result ", k.index, " ",
                         to_string(problem_.mesh(), problem_.layout(k.layout))));
    }
    const std::string& origin = anchors_.nodes[n].origin;
    throw UserError(cat("no layout fits ", node.op->name, " '", node.name, "' beside ",
                        join(have, ", "), " with locked factors ",
                        to_string(problem_.mesh(), FactorAxes{lock, {}, -1}),
                        origin.empty() ? "" : " (row of " + origin + ")",
                        "; token rows are never redistributed: split experts and their hidden dim "
                        "the same way in all expert weights, or drop the row"));
  }
  if (memorable) memory_.emplace(std::move(key), winner);
  return winner;
}

const Decision* Search::follow(int n) {
  const Node& node = problem_.graph().nodes[n];
  const Rule& rule = problem_.op_class(n).rule;
  FactorAxes factors;
  for (const auto& [letter, axes] : chosen_[node.forward]->factors.axes) {
    if (rule.factors.find(letter) != std::string::npos) factors.axes[letter] = axes;
  }
  for (const auto& [letter, axes] : locked(n)) factors.axes[letter] = axes;
  bool ragged = false;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (!rule.ragged_operands[k]) continue;
    ragged = true;
    const Value v = node.inputs[k];
    const auto& pending = chosen_[v.node]->layouts.results[v.output].partial;
    if (!pending.empty() && factors.partial.empty()) {
      factors.partial = pending;
      factors.linear_group = rule.linear_group_of(static_cast<int>(k));
    }
  }
  const Decision* decision = problem_.decision(problem_.class_of(n), factors);
  if (decision != nullptr) {
    const std::vector<Known> known = known_of(n, true);
    if (!ragged || score(n, *decision, known).possible) return decision;
  }
  return best(n, known_of(n, true), &factors);
}

bool Search::improve(int n) {
  const std::vector<Known> known = known_of(n, false);
  const Score now = score(n, *chosen_[n], known);
  if (now.communication <= 1e-12) return false;
  const Decision* other = best(n, known, nullptr);
  if (other == chosen_[n]) return false;
  const Score then = score(n, *other, known);
  if (then.communication >= now.communication * (1 - 1e-6) - 1e-12) return false;
  chosen_[n] = other;
  origin_[n] = "refined (was " + origin_[n] + ")";
  return true;
}

void Search::refine(int sweeps) {
  const Graph& graph = problem_.graph();
  const int count = static_cast<int>(graph.nodes.size());
  auto open = [&](int n, Phase phase) {
    return (graph.nodes[n].tag.phase == Phase::kForward) == (phase == Phase::kForward) &&
           !problem_.is_leaf(n) && !problem_.touches_ragged(n) && !cells_.overwrites(n);
  };
  // Forward first, priced with its gradient edges; then backward and update around it.
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    std::vector<char> dirty(count, 1);
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      bool changed = false;
      auto visit = [&](int n) {
        if (!open(n, phase) || !dirty[n]) return;
        dirty[n] = 0;
        if (!improve(n)) return;
        changed = true;
        for (Value v : graph.nodes[n].inputs) dirty[v.node] = 1;
        for (size_t r = 0; r < graph.nodes[n].outputs.size(); ++r) {
          for (const Use& use : problem_.uses(n, static_cast<int>(r))) dirty[use.node] = 1;
        }
      };
      for (int n = 0; n < count; ++n) visit(n);
      for (int n = count; n-- > 0;) visit(n);
      if (!changed) break;
    }
    if (phase != Phase::kForward) break;
    for (int n = 0; n < count; ++n) {
      if (follower_[n] && open(n, Phase::kBackward)) chosen_[n] = follow(n);
    }
  }
}

double Search::total_seconds() {
  const Graph& graph = problem_.graph();
  double total = 0;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    for (size_t r = 0; r < graph.nodes[n].outputs.size(); ++r) {
      std::set<int> wanted;
      for (const Use& use : problem_.uses(n, static_cast<int>(r))) {
        wanted.insert(chosen_[use.node]->operands[use.operand]);
      }
      for (int layout : wanted) {
        total += problem_.edge(problem_.op_class(n).result_types[r], chosen_[n]->results[r], layout)
                     .seconds;
      }
    }
  }
  return total;
}

}  // namespace moetrain
