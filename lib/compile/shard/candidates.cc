// From known neighbour layouts to candidate assignments.
#include "compile/shard/candidates.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

bool used(const FactorAxes& factors, Axis a) {
  for (const auto& [letter, axes] : factors.axes) {
    if (std::find(axes.begin(), axes.end(), a) != axes.end()) return true;
  }
  return std::find(factors.partial.begin(), factors.partial.end(), a) != factors.partial.end();
}

/// Is `a` kept from `letter` by another factor or a pending sum?
bool taken_from(const Rule& rule, const FactorAxes& factors, char letter, Axis a) {
  for (const auto& [other, axes] : factors.axes) {
    if (other != letter && rule.may_share(letter, other)) continue;
    if (std::find(axes.begin(), axes.end(), a) != axes.end()) return true;
  }
  return std::find(factors.partial.begin(), factors.partial.end(), a) != factors.partial.end();
}

/// Pending sums that all known operands of linear group `g` share.
std::vector<Axis> shared_partial(Problem& problem, const Rule& rule, size_t g,
                                 const std::vector<Known>& known) {
  std::vector<Axis> shared;
  bool first = true;
  for (int i : rule.linear[g]) {
    const auto at = std::find_if(known.begin(), known.end(), [&](const Known& k) {
      return k.operand && k.index == i;
    });
    if (at == known.end()) continue;
    const Layout& layout = problem.layout(at->layout);
    if (first) {
      shared = layout.partial;
    } else {
      std::erase_if(shared, [&](Axis a) {
        return std::find(layout.partial.begin(), layout.partial.end(), a) == layout.partial.end();
      });
    }
    first = false;
  }
  return shared;
}

/// The up to three largest factors an idle axis may go to.
std::vector<char> roomy_factors(const Problem& problem, int node, const FactorAxes& factors,
                                const std::map<char, std::vector<Axis>>* locked, Axis a) {
  const OpClass& c = problem.op_class(node);
  std::vector<std::pair<int64_t, char>> room;
  for (size_t f = 0; f < c.rule.factors.size(); ++f) {
    const char letter = c.rule.factors[f];
    if (c.rule.is_whole(letter) || (locked != nullptr && locked->contains(letter))) continue;
    if (c.rule.moves_tokens() && c.rule.is_local(letter)) continue;
    const auto at = factors.axes.find(letter);
    const int64_t left =
        c.sizes[f] / (at == factors.axes.end() ? 1 : problem.mesh().size(at->second));
    if (left > 1 && left % problem.mesh().atoms[a].size == 0) {
      room.emplace_back(-left, static_cast<char>(f));
    }
  }
  std::stable_sort(room.begin(), room.end());
  // Of the three largest, outer dims come first: rows before columns when all else is equal.
  std::string places;
  for (size_t i = 0; i < room.size() && i < 3; ++i) places += room[i].second;
  std::sort(places.begin(), places.end());
  std::vector<char> letters;
  for (char f : places) letters.push_back(c.rule.factors[static_cast<size_t>(f)]);
  return letters;
}

}  // namespace

void project(const Problem& problem, int node, bool operand, int index, const Layout& layout,
             FactorAxes& factors) {
  const OpClass& c = problem.op_class(node);
  const Mesh& mesh = problem.mesh();
  const auto& term = operand ? c.rule.operands[index] : c.rule.results[index];
  const bool ragged = operand ? c.rule.ragged_operands[index] : c.rule.ragged_results[index];
  for (size_t d = 0; d < term.size(); ++d) {
    if (ragged && d == 1 && c.rule.moves_tokens()) continue;  // follows from the tokens
    const std::vector<Axis>& axes = layout.dims[d];
    size_t next = 0;
    for (char letter : term[d]) {
      const int64_t size = c.sizes[c.rule.factors.find(letter)];
      if (size == 1) continue;
      if (c.rule.is_whole(letter) || factors.axes.contains(letter)) break;
      std::vector<Axis> taken;
      int64_t parts = 1;
      while (next < axes.size() && !taken_from(c.rule, factors, letter, axes[next])) {
        const int64_t more = parts * mesh.atoms[axes[next]].size;
        if (!(ragged && d == 1) && size % more != 0) break;
        parts = more;
        taken.push_back(axes[next++]);
      }
      if (!taken.empty()) factors.axes[letter] = taken;
      if (parts != size) break;
    }
  }
}

std::vector<const Decision*> candidates(Problem& problem, int node, const std::vector<Known>& known,
                                        const CandidateOptions& options) {
  const OpClass& c = problem.op_class(node);
  const int number = problem.class_of(node);
  FactorAxes base;
  if (options.locked != nullptr) base.axes = *options.locked;

  std::vector<FactorAxes> bases;
  auto add_base = [&](const FactorAxes& factors) {
    FactorAxes clean = factors;
    std::erase_if(clean.axes, [](const auto& entry) { return entry.second.empty(); });
    if (std::find(bases.begin(), bases.end(), clean) == bases.end()) bases.push_back(clean);
  };
  if (options.first != nullptr) {
    FactorAxes first = base;
    for (const auto& [letter, axes] : options.first->axes) {
      if (c.rule.factors.find(letter) == std::string::npos || first.axes.contains(letter)) continue;
      const char l = letter;
      const bool clash = std::any_of(axes.begin(), axes.end(), [&](Axis a) {
        return taken_from(c.rule, base, l, a);
      });
      if (!clash) first.axes[letter] = axes;
    }
    add_base(first);
  }
  auto merged = [&](auto begin, auto end) {
    FactorAxes factors = base;
    for (auto k = begin; k != end; ++k) {
      project(problem, node, k->operand, k->index, problem.layout(k->layout), factors);
    }
    return factors;
  };
  add_base(merged(known.begin(), known.end()));
  add_base(merged(known.rbegin(), known.rend()));
  for (auto k = known.begin(); k != known.end(); ++k) add_base(merged(k, k + 1));
  add_base(base);

  // Pending sums that may pass through a linear op.
  std::set<Axis> pending;
  std::vector<FactorAxes> all;
  const bool may_keep = options.locked == nullptr || options.locked->empty() ||
                        problem.touches_ragged(node);
  for (const FactorAxes& factors : bases) {
    for (size_t g = 0; may_keep && g < c.rule.linear.size(); ++g) {
      FactorAxes keep = factors;
      for (Axis a : shared_partial(problem, c.rule, g, known)) {
        if (!used(factors, a)) keep.partial.push_back(a);
      }
      if (keep.partial.empty()) continue;
      keep.linear_group = static_cast<int>(g);
      all.push_back(keep);
    }
    all.push_back(factors);
  }
  for (const Known& k : known) {
    const auto& partial = problem.layout(k.layout).partial;
    pending.insert(partial.begin(), partial.end());
  }
  // Idle axes: leave idle, or split one of the roomiest factors further.
  for (Axis a = 0; a < static_cast<Axis>(problem.mesh().atoms.size()); ++a) {
    if (problem.mesh().atoms[a].size == 1) continue;
    if (!options.use_idle_axes && !pending.contains(a)) continue;
    for (size_t i = 0, count = all.size(); i < count && all.size() < options.limit; ++i) {
      if (used(all[i], a)) continue;
      for (char letter : roomy_factors(problem, node, all[i], options.locked, a)) {
        if (all.size() >= options.limit) break;
        FactorAxes more = all[i];
        more.axes[letter].push_back(a);
        all.push_back(std::move(more));
      }
    }
  }
  std::vector<const Decision*> decisions;
  for (const FactorAxes& factors : all) {
    const Decision* decision = problem.decision(number, factors);
    if (decision == nullptr) continue;
    if (std::find(decisions.begin(), decisions.end(), decision) == decisions.end()) {
      decisions.push_back(decision);
    }
  }
  return decisions;
}

}  // namespace moetrain
