// Matches rows of annotation against nodes and refuses the impossible ones.
#include "compile/shard/anchors.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

using Kind = LayoutRow::Kind;

size_t literals(const std::string& pattern) {
  return pattern.size() - static_cast<size_t>(std::count(pattern.begin(), pattern.end(), '*'));
}

std::string row_text(const LayoutRow& row) {
  std::string text = row.pattern + "{";
  for (const auto& [factor, axes] : row.factors) text += cat(factor, ": (", join(axes, " "), ") ");
  for (const auto* side : {&row.in, &row.out}) {
    for (const auto& tensor : *side) {
      text += "[";
      for (const auto& dim : tensor) text += "(" + join(dim, " ") + ")";
      text += "]";
    }
    text += ";";
  }
  return text + "} " + row.origin;
}

class Binder {
 public:
  Binder(Problem& problem, Anchors& anchors) : problem_(problem), anchors_(anchors) {
    anchors_.nodes.resize(problem.graph().nodes.size());
    for (size_t n = 0; n < anchors_.nodes.size(); ++n) {
      by_name_[problem.graph().nodes[n].name].push_back(static_cast<int>(n));
      all_.push_back(static_cast<int>(n));
    }
  }

  void bind(const LayoutRow& row) {
    bool matched = false, useful = false;
    const bool exact = row.pattern.find('*') == std::string::npos;
    for (int n : exact ? by_name_[row.pattern] : all_) {
      const Node& node = problem_.graph().nodes[n];
      const bool leaf = is_port(n);
      if (leaf != (row.kind == Kind::kState) || node.forward >= 0) continue;
      if (!glob_match(row.pattern, node.name)) continue;
      matched = true;
      try {
        switch (row.kind) {
          case Kind::kFactors: useful |= bind_factors(row, n); break;
          case Kind::kUses: useful |= bind_uses(row, n); break;
          case Kind::kState: useful |= bind_state(row, n); break;
        }
      } catch (const UserError& error) {
        for (const Diagnostic& d : error.diagnostics()) refuse(row, d.message);
        return;
      }
    }
    if (!matched) {
      if (row.locked) anchors_.notes.push_back(cat("row '", row.pattern, "' (", row.origin, ") matches nothing"));
    } else if (!useful && row.kind == Kind::kFactors && row.locked) {
      refuse(row, cat("none of the ops that '", row.pattern, "' matches has ",
                      row.factors.size() == 1 ? "factor " : "any of the factors ",
                      letters(row), "; look at the rules in lib/ops, or run with --explain"));
    }
  }

  void finish() {
    if (!faults_.empty()) throw UserError(faults_);
    std::map<std::string, int> numbers;
    for (NodeAnchor& anchor : anchors_.nodes) {
      if (anchor.origin.empty()) continue;
      std::string key;
      for (const auto& [f, axes] : anchor.factors) key += cat(f, ":", join(axes, ","), " ");
      for (const auto& [i, layout] : anchor.in) key += cat(i, "<", problem_.layout_number(layout));
      if (anchor.out) key += cat(">", problem_.layout_number(*anchor.out));
      anchor.number = numbers.emplace(key, static_cast<int>(numbers.size()) + 1).first->second;
    }
  }

 private:
  bool is_port(int n) const {
    const std::string_view op = problem_.graph().nodes[n].op->name;
    return op == "state" || op == "input";
  }
  static std::string letters(const LayoutRow& row) {
    std::vector<char> list;
    for (const auto& [f, axes] : row.factors) list.push_back(f);
    return join(list, ", ");
  }
  void refuse(const LayoutRow& row, const std::string& why) {
    // An origin like file:line:column belongs in front, where editors look for it.
    const bool place = std::count(row.origin.begin(), row.origin.end(), ':') >= 2;
    faults_.push_back({place ? row.origin : "",
                       place ? why : cat(why, " (row '", row.pattern, "' of ", row.origin, ")")});
  }
  std::vector<Axis> atoms(const std::vector<std::string>& names) const {
    std::vector<Axis> axes;
    for (const std::string& name : names) {
      if (name == "-" || name == "None") continue;
      const auto run = resolve_axis(problem_.mesh(), name);
      for (Axis a : run) {
        if (problem_.mesh().atoms[a].size > 1) axes.push_back(a);
      }
    }
    return axes;
  }
  std::string described(int n) const {
    const Node& node = problem_.graph().nodes[n];
    std::vector<std::string> shapes;
    for (Value v : node.inputs) shapes.push_back(to_string(problem_.graph().type(v)));
    std::vector<std::string> results;
    for (const Type& type : node.outputs) results.push_back(to_string(type));
    return cat(node.op->name, " '", node.name, "' (", join(shapes, ", "), ") -> ",
               join(results, ", "));
  }
  void claim(NodeAnchor& anchor, const LayoutRow& row) {
    if (anchor.origin.empty()) anchor.origin = row.origin;
    anchor.locked |= row.locked;
  }
  void lost(const LayoutRow& row, int n, const std::string& what) {
    if (!row.locked) return;  // strategies override each other by design
    anchors_.notes.push_back(cat("row '", row.pattern, "' (", row.origin, ") has no effect on ",
                                 what, " of '", problem_.graph().nodes[n].name,
                                 "': decided by ", anchors_.nodes[n].origin));
  }

  bool bind_factors(const LayoutRow& row, int n) {
    const OpClass& c = problem_.op_class(n);
    NodeAnchor& anchor = anchors_.nodes[n];
    bool useful = false;
    for (const auto& [factor, names] : row.factors) {
      if (c.rule.factors.find(factor) == std::string::npos) continue;
      useful = true;
      const std::vector<Axis> axes = atoms(names);
      const auto at = anchor.factors.find(factor);
      if (at != anchor.factors.end()) {
        if (at->second != axes) lost(row, n, cat("factor ", factor));
        continue;
      }
      FactorAxes wanted;
      wanted.axes = anchor.factors;
      wanted.axes[factor] = axes;
      FactorAxes alone;
      alone.axes[factor] = axes;
      const Mesh& mesh = problem_.mesh();
      const std::string fault = assignment_fault(mesh, c.rule, c.sizes, alone);
      if (std::set<Axis>(axes.begin(), axes.end()).size() != axes.size()) {
        throw UserError(cat("LAYOUT_AXIS_REUSED: ", described(n), ": factor '", factor,
                            "' names an axis twice in ",
                            axes_text(mesh, axes), "; name every axis once"));
      }
      if (!fault.empty()) {
        throw UserError(cat("LAYOUT_DIVIDE: ", described(n), ": ", fault,
                            "; give the factor fewer ranks, or a size that divides"));
      }
      if (!assignment_fault(mesh, c.rule, c.sizes, wanted).empty()) {
        lost(row, n, cat("factor ", factor));
        continue;
      }
      anchor.factors[factor] = axes;
      claim(anchor, row);
    }
    return useful;
  }

  Layout layout_from(const std::vector<std::vector<std::string>>& dims, const Type& type,
                     const std::string& what) const {
    Layout layout;
    for (const auto& names : dims) layout.dims.push_back(atoms(names));
    check_layout(problem_.mesh(), layout, type.shape, what);
    return layout;
  }
  bool bind_uses(const LayoutRow& row, int n) {
    const Node& node = problem_.graph().nodes[n];
    NodeAnchor& anchor = anchors_.nodes[n];
    if (row.in.size() > node.inputs.size() || row.out.size() > 1) {
      throw UserError(cat("LAYOUT_ARG: ", described(n), " has ", node.inputs.size(),
                          " operands; the row gives layouts for ", row.in.size(), " and for ",
                          row.out.size(), " results (one at most)"));
    }
    for (size_t i = 0; i < row.in.size(); ++i) {
      if (row.in[i].empty() && !problem_.graph().type(node.inputs[i]).shape.empty()) continue;
      const Type& type = problem_.graph().type(node.inputs[i]);
      if (type.ragged) {
        throw UserError(cat("operand ", i, " of ", described(n), " has token rows of run-time ",
                            "number: give axes to factors instead"));
      }
      const Layout layout = layout_from(row.in[i], type, cat("operand ", i, " of ", described(n)));
      const auto [at, fresh] = anchor.in.emplace(static_cast<int>(i), layout);
      if (!fresh && at->second != layout) lost(row, n, cat("operand ", i));
      claim(anchor, row);
    }
    if (!row.out.empty()) {
      const Layout layout =
          layout_from(row.out[0], node.outputs[0], cat("the result of ", described(n)));
      if (!anchor.out) {
        anchor.out = layout;
      } else if (*anchor.out != layout) {
        lost(row, n, "the result");
      }
      claim(anchor, row);
    }
    return true;
  }
  bool bind_state(const LayoutRow& row, int n) {
    const Node& node = problem_.graph().nodes[n];
    NodeAnchor& anchor = anchors_.nodes[n];
    if (row.out.size() != 1) {
      throw UserError(cat("LAYOUT_ARG: a row for '", node.name, "' needs exactly one layout"));
    }
    // `[-]` or nothing at all stands for "whole" whatever the rank.
    std::vector<std::vector<std::string>> dims = row.out[0];
    const bool whole = std::all_of(dims.begin(), dims.end(), [&](const auto& names) {
      return atoms(names).empty();
    });
    if (whole) dims.assign(node.outputs[0].shape.size(), {});
    const Layout layout = layout_from(dims, node.outputs[0], cat("'", node.name, "'"));
    if (!anchor.leaf) {
      anchor.leaf = layout;
    } else if (*anchor.leaf != layout) {
      lost(row, n, "the layout");
    }
    claim(anchor, row);
    return true;
  }

  Problem& problem_;
  Anchors& anchors_;
  std::map<std::string, std::vector<int>> by_name_;
  std::vector<int> all_;
  std::vector<Diagnostic> faults_;
};

}  // namespace

Anchors bind_rows(Problem& problem, const std::vector<LayoutRow>& rows) {
  std::vector<const LayoutRow*> order;
  for (const LayoutRow& row : rows) order.push_back(&row);
  std::map<const LayoutRow*, std::string> text;
  for (const LayoutRow& row : rows) text[&row] = row_text(row);
  std::sort(order.begin(), order.end(), [&](const LayoutRow* a, const LayoutRow* b) {
    if (a->locked != b->locked) return a->locked;
    if (literals(a->pattern) != literals(b->pattern)) {
      return literals(a->pattern) > literals(b->pattern);
    }
    return text[a] < text[b];
  });
  Anchors anchors;
  Binder binder(problem, anchors);
  for (const LayoutRow* row : order) binder.bind(*row);
  binder.finish();
  return anchors;
}

}  // namespace moetrain
