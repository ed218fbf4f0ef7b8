// Reads sharding rules and applies the one law that gives layouts to operands and results.
#include "compile/shard/rule.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/op.h"

namespace moetrain {
namespace {

std::string without_spaces(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c != ' ') out += c;
  }
  return out;
}

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// One term as dims; "*" stays a dim of its own for now.
std::vector<std::string> term_dims(const std::string& term, const std::string& rule) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term[i] == '(') {
      const size_t end = term.find(')', i);
      MT_CHECK(end != std::string::npos && end > i + 1, "unclosed or empty ( in rule ", rule);
      dims.push_back(term.substr(i + 1, end - i - 1));
      i = end;
    } else {
      MT_CHECK(std::isalpha(static_cast<unsigned char>(term[i])) || term[i] == '*', "'", term[i],
               "' in rule ", rule);
      dims.push_back(std::string(1, term[i]));
    }
  }
  return dims;
}

std::vector<std::vector<std::string>> read_terms(const std::string& text, size_t count,
                                                 const std::string& rule) {
  std::vector<std::vector<std::string>> terms;
  if (count == 0 && text.empty()) return terms;
  for (const std::string& term : split_at(text, ',')) terms.push_back(term_dims(term, rule));
  return terms;
}

/// Replaces "*" by `count` private letters.
void expand_star(std::vector<std::string>& dims, size_t count) {
  const auto star = std::find(dims.begin(), dims.end(), "*");
  if (star == dims.end()) return;
  std::vector<std::string> letters;
  for (size_t i = 0; i < count; ++i) letters.push_back(std::string(1, static_cast<char>('A' + i)));
  const auto at = dims.erase(star);
  dims.insert(at, letters.begin(), letters.end());
}

bool has_star(const std::vector<std::string>& dims) {
  return std::find(dims.begin(), dims.end(), "*") != dims.end();
}

std::vector<int> read_group(const std::string& text, size_t operands, const std::string& rule) {
  std::vector<int> group;
  if (text == "*") {
    for (size_t i = 0; i < operands; ++i) group.push_back(static_cast<int>(i));
  } else if (text.find(',') != std::string::npos) {
    for (const std::string& number : split_at(text, ',')) group.push_back(std::stoi(number));
  } else {
    for (char c : text) group.push_back(c - '0');
  }
  for (int i : group) {
    MT_CHECK(i >= 0 && i < static_cast<int>(operands), "linear group '", text, "' in rule ", rule);
  }
  return group;
}

void read_clause(Rule& rule, const std::string& clause, size_t operands, const std::string& text) {
  const size_t begin = clause.find_first_not_of(' ');
  if (begin == std::string::npos) return;
  const size_t end = std::min(clause.find(' ', begin), clause.size());
  const std::string word = clause.substr(begin, end - begin);
  const std::string rest = without_spaces(clause.substr(end));
  if (word == "whole") {
    rule.whole += rest;
  } else if (word == "local") {
    rule.local += rest;
  } else if (word == "linear") {
    for (const std::string& group : split_at(rest, '|')) {
      const size_t arrow = group.find('>');
      rule.linear.push_back(read_group(group.substr(0, arrow), operands, text));
      rule.linear_results.emplace_back();
      if (arrow == std::string::npos) continue;
      rule.linear_results.back() = read_group(group.substr(arrow + 1), rule.results.size(), text);
    }
  } else {
    MT_CHECK(false, "unknown clause '", word, "' in rule ", text);
  }
}

bool contains(const std::vector<Axis>& axes, Axis a) {
  return std::find(axes.begin(), axes.end(), a) != axes.end();
}

const std::vector<Axis>& axes_of(const FactorAxes& assignment, char factor) {
  static const std::vector<Axis> none;
  const auto at = assignment.axes.find(factor);
  return at == assignment.axes.end() ? none : at->second;
}

bool term_has(const std::vector<std::string>& term, char factor) {
  return std::any_of(term.begin(), term.end(), [&](const std::string& dim) {
    return dim.find(factor) != std::string::npos;
  });
}

bool any_ragged(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

/// Axes of the tokens (b, then s) that the experts do not have: the split of a ragged dim 1.
std::vector<Axis> ragged_row_axes(const Rule& rule, const FactorAxes& assignment) {
  std::vector<Axis> axes;
  for (char token : {'b', 's'}) {
    for (Axis a : axes_of(assignment, token)) {
      bool on_expert = false;
      for (char e : rule.local) on_expert |= contains(axes_of(assignment, e), a);
      if (!on_expert) axes.push_back(a);
    }
  }
  return axes;
}

Layout term_layout(const Rule& rule, const FactorAxes& assignment,
                   const std::vector<std::string>& term, bool ragged) {
  Layout layout;
  for (size_t d = 0; d < term.size(); ++d) {
    std::vector<Axis> axes;
    if (ragged && d == 1 && rule.moves_tokens()) {
      axes = ragged_row_axes(rule, assignment);
    } else {
      for (char factor : term[d]) {
        const auto& more = axes_of(assignment, factor);
        axes.insert(axes.end(), more.begin(), more.end());
      }
    }
    layout.dims.push_back(std::move(axes));
  }
  return layout;
}

/// Axes over which result `r` is a pending sum by the one law.
std::vector<Axis> summed_axes(const Rule& rule, const FactorAxes& assignment, size_t r,
                              const Layout& result) {
  const auto& term = rule.results[r];
  std::vector<Axis> partial;
  const int group = assignment.linear_group;
  const bool concerned =
      group < 0 || rule.linear_results[group].empty() ||
      std::find(rule.linear_results[group].begin(), rule.linear_results[group].end(),
                static_cast<int>(r)) != rule.linear_results[group].end();
  if (concerned) partial = assignment.partial;
  const bool tokenless = !rule.ragged_results[r] && !term_has(term, 'b') && !term_has(term, 's');
  if (rule.moves_tokens() && tokenless && !term.empty()) return partial;
  for (const auto& [factor, axes] : assignment.axes) {
    if (term_has(term, factor)) continue;
    if (term.empty() && rule.is_local(factor)) continue;
    const bool read = std::any_of(rule.operands.begin(), rule.operands.end(),
                                  [&](const auto& operand) { return term_has(operand, factor); });
    if (!read) continue;
    for (Axis a : axes) {
      const bool split = std::any_of(result.dims.begin(), result.dims.end(),
                                     [&](const auto& dim) { return contains(dim, a); });
      if (!split && !contains(partial, a)) partial.push_back(a);
    }
  }
  return partial;
}

/// Is `factor` the run-time row count of a ragged value?
bool is_ragged_rows(const Rule& rule, char factor) {
  auto in = [&](const auto& terms, const std::vector<bool>& ragged) {
    for (size_t t = 0; t < terms.size(); ++t) {
      if (ragged[t] && terms[t][1].find(factor) != std::string::npos) return true;
    }
    return false;
  };
  return in(rule.operands, rule.ragged_operands) || in(rule.results, rule.ragged_results);
}

}  // namespace

bool Rule::moves_tokens() const {
  if (local.empty() || !(any_ragged(ragged_operands) || any_ragged(ragged_results))) return false;
  return factors.find('b') != std::string::npos || factors.find('s') != std::string::npos;
}

bool Rule::may_share(char x, char y) const {
  auto is_token = [](char f) { return f == 'b' || f == 's'; };
  return moves_tokens() && ((is_local(x) && is_token(y)) || (is_token(x) && is_local(y)));
}

int Rule::linear_group_of(int i) const {
  for (size_t g = 0; g < linear.size(); ++g) {
    if (std::find(linear[g].begin(), linear[g].end(), i) != linear[g].end()) {
      return static_cast<int>(g);
    }
  }
  return -1;
}

Rule parse_rule(const std::string& text, const std::vector<size_t>& operand_ranks,
                const std::vector<size_t>& result_ranks) {
  Rule rule;
  const std::vector<std::string> clauses = split_at(text, ';');
  const std::string terms = without_spaces(clauses[0]);
  const size_t arrow = terms.find("->");
  MT_CHECK(arrow != std::string::npos, "no -> in rule '", text, "'");
  rule.operands = read_terms(terms.substr(0, arrow), operand_ranks.size(), text);
  rule.results = read_terms(terms.substr(arrow + 2), 1, text);
  MT_CHECK(rule.operands.size() == operand_ranks.size(), "rule '", text, "' has ",
           rule.operands.size(), " operands, the op ", operand_ranks.size());
  MT_CHECK(result_ranks.empty() || rule.results.size() == result_ranks.size(), "rule '", text,
           "' has ", rule.results.size(), " results, the op ", result_ranks.size());
  size_t star = 0;
  bool star_known = false;
  auto expand = [&](std::vector<std::string>& dims, size_t rank) {
    if (has_star(dims)) {
      MT_CHECK(dims.size() - 1 <= rank, "rule '", text, "' for rank ", rank);
      const size_t count = rank + 1 - dims.size();
      MT_CHECK(!star_known || count == star, "* stands for ", star, " and ", count,
               " dims in rule '", text, "'");
      star = count;
      star_known = true;
      expand_star(dims, count);
    }
    MT_CHECK(dims.size() == rank, "rule '", text, "' has ", dims.size(), " dims where the type has ",
             rank);
  };
  for (size_t i = 0; i < rule.operands.size(); ++i) expand(rule.operands[i], operand_ranks[i]);
  for (size_t r = 0; r < rule.results.size(); ++r) {
    if (result_ranks.empty()) {
      MT_CHECK(star_known || !has_star(rule.results[r]), "* without operands in rule '", text, "'");
      expand_star(rule.results[r], star);
    } else {
      expand(rule.results[r], result_ranks[r]);
    }
  }
  for (size_t c = 1; c < clauses.size(); ++c) {
    read_clause(rule, clauses[c], operand_ranks.size(), text);
  }
  for (const auto* side : {&rule.operands, &rule.results}) {
    for (const auto& term : *side) {
      for (char factor : join(term, "")) {
        if (rule.factors.find(factor) == std::string::npos) rule.factors += factor;
      }
    }
  }
  for (char factor : rule.whole + rule.local) {
    MT_CHECK(rule.factors.find(factor) != std::string::npos, "clause names '", factor,
             "', which rule '", text, "' does not have");
  }
  rule.in_place.assign(rule.results.size(), -1);
  rule.ragged_operands.assign(rule.operands.size(), false);
  rule.ragged_results.assign(rule.results.size(), false);
  return rule;
}

Rule parse_rule(const std::string& text, const std::vector<size_t>& operand_ranks) {
  return parse_rule(text, operand_ranks, {});
}

Rule rule_of(const Graph& graph, int n) {
  const Node& node = graph.nodes[n];
  std::vector<Type> types;
  std::vector<size_t> operand_ranks, result_ranks;
  for (Value v : node.inputs) {
    types.push_back(graph.type(v));
    operand_ranks.push_back(types.back().shape.size());
  }
  for (const Type& type : node.outputs) result_ranks.push_back(type.shape.size());
  MT_CHECK(node.op->rule != nullptr, "op ", node.op->name, " has no sharding rule");
  Rule rule = parse_rule(node.op->rule(node.attrs, types), operand_ranks, result_ranks);
  for (size_t i = 0; i < types.size(); ++i) rule.ragged_operands[i] = types[i].ragged;
  // The weights' gradient is the product of dy and the rows: rows that are pending sums (experts whose
  // hidden dim is split) make it one, and leave the rows' gradient alone.
  if (std::string_view(node.op->name) == "combine_grad" && rule.linear_group_of(4) < 0) {
    rule.linear.push_back({4});
    rule.linear_results.push_back({1});
  }
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    rule.ragged_results[r] = node.outputs[r].ragged;
    if (node.op->alias == nullptr) continue;
    // A rename (reshape, settle) shares memory too, but overwrites nothing.
    const int i = node.op->alias(node.attrs, static_cast<int>(r));
    const std::string_view name = node.op->name;
    const bool rename = name == "reshape" || name == "settle";
    if (i >= 0 && !rename && types[i] == node.outputs[r]) rule.in_place[r] = i;
  }
  return rule;
}

std::vector<int64_t> factor_sizes(const Graph& graph, int n, const Rule& rule) {
  const Node& node = graph.nodes[n];
  std::vector<int64_t> sizes(rule.factors.size(), -1);
  auto size_of_factor = [&](char f) -> int64_t& { return sizes[rule.factors.find(f)]; };
  std::vector<std::pair<std::string, int64_t>> dims;
  auto collect = [&](const std::vector<std::vector<std::string>>& terms, auto type_at) {
    for (size_t t = 0; t < terms.size(); ++t) {
      const Type& type = type_at(t);
      for (size_t d = 0; d < terms[t].size(); ++d) {
        // The row count of a ragged value is no size anything could be divided by.
        if (type.ragged && d == 1 && terms[t][d].size() > 1) continue;
        dims.emplace_back(terms[t][d], type.shape[d]);
      }
    }
  };
  collect(rule.operands, [&](size_t i) -> const Type& { return graph.type(node.inputs[i]); });
  collect(rule.results, [&](size_t r) -> const Type& { return node.outputs[r]; });
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto& [letters, size] : dims) {
      int64_t known = 1;
      std::string unknown;
      for (char f : letters) {
        if (size_of_factor(f) < 0) {
          unknown += f;
        } else {
          known *= size_of_factor(f);
        }
      }
      if (unknown.size() != 1 || known == 0 || size % known != 0) continue;
      size_of_factor(unknown[0]) = size / known;
      changed = true;
    }
  }
  for (const auto& [letters, size] : dims) {
    int64_t product = 1;
    bool whole = true;
    for (char f : letters) {
      product *= size_of_factor(f);
      whole &= rule.is_whole(f);
    }
    MT_CHECK(whole || product == size, "factors ", letters, " of ", node.op->name, " '", node.name,
             "' do not make ", size);
  }
  return sizes;
}

NodeLayouts layouts_for(const Mesh& mesh, const Rule& rule, const FactorAxes& assignment) {
  NodeLayouts layouts;
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    Layout layout = term_layout(rule, assignment, rule.operands[i], rule.ragged_operands[i]);
    const int group = rule.linear_group_of(static_cast<int>(i));
    if (group >= 0 && group == assignment.linear_group) layout.partial = assignment.partial;
    layouts.operands.push_back(normalise(mesh, std::move(layout)));
  }
  for (size_t r = 0; r < rule.results.size(); ++r) {
    Layout layout = term_layout(rule, assignment, rule.results[r], rule.ragged_results[r]);
    layout.partial = summed_axes(rule, assignment, r, layout);
    layouts.results.push_back(normalise(mesh, std::move(layout)));
    if (rule.in_place[r] >= 0) layouts.operands[rule.in_place[r]] = layouts.results[r];
  }
  return layouts;
}

std::string assignment_fault(const Mesh& mesh, const Rule& rule, const std::vector<int64_t>& sizes,
                             const FactorAxes& assignment) {
  std::map<Axis, std::string> users;
  for (const auto& [factor, axes] : assignment.axes) {
    const int parts = mesh.size(axes);
    if (parts == 1) continue;
    const size_t at = rule.factors.find(factor);
    if (at == std::string::npos) return cat("factor '", factor, "' is not of the rule");
    if (rule.is_whole(factor)) return cat("factor '", factor, "' is never split by this op");
    if (!is_ragged_rows(rule, factor) && sizes[at] % parts != 0) {
      return cat("factor '", factor, "' of size ", sizes[at], " cannot be cut into ", parts,
                 " equal parts by ", axes_text(mesh, axes));
    }
    for (Axis a : axes) {
      if (mesh.atoms[a].size == 1) continue;
      for (char other : users[a]) {
        if (!rule.may_share(factor, other)) {
          return cat("axis '", mesh.atoms[a].name, "' is on factor '", other, "' and on '", factor,
                     "'");
        }
      }
      users[a] += factor;
    }
  }
  for (Axis a : assignment.partial) {
    if (users.contains(a)) {
      return cat("axis '", mesh.atoms[a].name, "' is pending and on factor '", users[a], "'");
    }
  }
  for (const auto* side : {&rule.operands, &rule.results}) {
    for (const auto& term : *side) {
      for (const std::string& dim : term) {
        bool room = true;  // may the next, more minor factor still be split?
        for (char factor : dim) {
          const int parts = mesh.size(axes_of(assignment, factor));
          if (parts > 1 && !room) {
            return cat("factor '", factor, "' is the minor part of the merged dim (", dim,
                       ") whose major part is not fully split");
          }
          room = room && parts == sizes[rule.factors.find(factor)];
        }
      }
    }
  }
  return "";
}

std::string to_string(const Mesh& mesh, const FactorAxes& assignment) {
  std::vector<std::string> parts;
  for (const auto& [factor, axes] : assignment.axes) {
    if (!axes.empty()) parts.push_back(cat(factor, ": ", axes_text(mesh, axes)));
  }
  std::string text = "{" + join(parts, ", ") + "}";
  if (!assignment.partial.empty()) text += " partial " + axes_text(mesh, assignment.partial);
  return text;
}

}  // namespace moetrain
