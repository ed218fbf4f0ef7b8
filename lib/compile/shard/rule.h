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
/// `4>1` in a group list: operand 4 alone is linear, but only in result 1 (results after `>`).
/// `*` in a term stands for all dims the other letters leave, under shared private letters A, B, ...
/// (elementwise ops: `*,*->*`); a rule without operands may be `->*`. `linear *` is one group of all
/// operands.
///
/// The one law: a result that lacks a factor which some operand is split on is partial (sum) over
/// the axes of that factor, as far as it is not split by them itself. Two notes make it complete:
///  - A scalar result is never partial over a `local` factor: the op's expansion finishes it
///    (vocab_loss over v gives whole losses, but a partial dx).
///  - Ragged values are [e, t, ...]. In an op whose `local` factor is the e of a ragged value, an axis
///    may be on e and on the token factors b, s as well, dim t of a ragged value is split by the
///    token axes that e does not have, and a plain result without tokens (the dispatch plan) is each
///    rank's own: it is never partial and has an empty layout. Example on axes dp, tp with b:dp, s:tp,
///    e:tp: dispatch gives rows [tp, dp, -]; combine gives [dp, tp, -]; with s whole combine gives
///    [dp, -, -] +{tp}.
/// An operand that a result overwrites (OpDef::alias of an equal type) has exactly that result's
/// layout, pending sums included: adding a partial product in place keeps the accumulator partial.
struct Rule {
  /// Factors (letters) per dim, per operand / result; compound dims have several.
  std::vector<std::vector<std::string>> operands, results;
  std::string factors;                  ///< all letters, in order of first appearance
  std::string whole, local;
  std::vector<std::vector<int>> linear; ///< groups of operand indices
  std::vector<std::vector<int>> linear_results;  ///< per group: the results concerned (empty: all)
  std::vector<int> in_place;            ///< per result: the operand it overwrites, or -1
  std::vector<bool> ragged_operands, ragged_results;

  bool is_whole(char factor) const { return whole.find(factor) != std::string::npos; }
  bool is_local(char factor) const { return local.find(factor) != std::string::npos; }
  /// Does the op move tokens to or from ragged rows (dispatch, combine and their gradients)?
  bool moves_tokens() const;
  /// May one axis be on both factors? Only on the experts and the tokens of dispatch and combine.
  bool may_share(char x, char y) const;
  /// The group that has operand `i`, or -1.
  int linear_group_of(int i) const;
};

/// Parses `text` for an op with these operand ranks; throws InternalError on a malformed rule.
Rule parse_rule(const std::string& text, const std::vector<size_t>& operand_ranks);
/// The same when the results' ranks are known too (rules without operands need them).
Rule parse_rule(const std::string& text, const std::vector<size_t>& operand_ranks,
                const std::vector<size_t>& result_ranks);
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
/// Why `assignment` is impossible (a whole factor split, a size that does not divide, an axis used
/// twice, the minor part of a compound dim split), or "" if it is possible.
std::string assignment_fault(const Mesh& mesh, const Rule& rule, const std::vector<int64_t>& sizes,
                             const FactorAxes& assignment);
/// "{b: dp, s: (cp tp)} partial {tp}".
std::string to_string(const Mesh& mesh, const FactorAxes& assignment);

}  // namespace moetrain
