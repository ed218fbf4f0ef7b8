// Rule: which factors the dims of an op's operands and results are made of, read from one line of text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/shard/layout.h"

namespace moetrain {

/// Grammar: `operands -> results [; clause]...`, terms separated by commas, one letter per dim, an
/// empty term for a scalar. A compound dim `(hx)` consists of several factors, major first.
/// Clauses: `whole ab` (these factors are never split), `local e` (split only through the op's own
/// local expansion, e.g. embedding over v, dispatch over e), `linear G` where G lists groups of
/// operand indices separated by `|`: `0|1` linear in each of two operands alone, `01` jointly linear
/// (add); an operand may be partial only within one whole group, and then every result is partial.
/// `*` as a dim letter list stands for all dims of that operand under shared private letters
/// (elementwise ops: `*,*->*`).
/// The one law: a result that lacks a factor which some operand is split on is partial (sum) over
/// the axes of that factor.
struct Rule {
  /// Factors (letters) per dim, per operand / result; compound dims have several.
  std::vector<std::vector<std::string>> operands, results;
  std::string factors;                  ///< all letters, in order of first appearance
  std::string whole, local;
  std::vector<std::vector<int>> linear; ///< groups of operand indices
};

/// Parses `text` for an op with these operand ranks; throws InternalError on a malformed rule.
Rule parse_rule(const std::string& text, const std::vector<size_t>& operand_ranks);
/// The rule of a node (ragged dims included), parsed.
Rule rule_of(const Graph& graph, int node);
/// Sizes of all factors of a node, indexed like Rule::factors.
std::vector<int64_t> factor_sizes(const Graph& graph, int node, const Rule& rule);

/// Axes per factor: the sharding decision of one node. `partial` are axes over which a linear op
/// passes a pending sum from operands (of group `linear_group`) to results.
struct FactorAxes {
  std::map<char, std::vector<Axis>> axes;
  std::vector<Axis> partial;
  int linear_group = -1;
  bool operator==(const FactorAxes&) const = default;
};

/// Layouts that an assignment demands of every operand and gives to every result.
struct NodeLayouts {
  std::vector<Layout> operands, results;
};
NodeLayouts layouts_for(const Mesh& mesh, const Rule& rule, const FactorAxes& assignment);

}  // namespace moetrain
