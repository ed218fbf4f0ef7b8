// Reads the rows of `parallel.shard`, whose keys depend on the form of the row.
#include <algorithm>

#include "base/text.h"
#include "config/reader.h"

namespace moetrain {

namespace {

bool is_none(const YamlNode& node) {
  return node.kind == YamlNode::kNull ||
         (node.kind == YamlNode::kScalar && (node.scalar == "-" || node.scalar == "none"));
}

class RowReader {
 public:
  RowReader(const YamlNode& node, std::string path, Reading& reading)
      : node_(node), path_(std::move(path)), reading_(reading) {}

  bool run(ShardRow& row) {
    if (node_.kind != YamlNode::kMap) {
      refuse(path_, node_, cat("must be a map with `op` or `param`, not ", node_.kind_name()));
      return false;
    }
    row.where = node_.origin.where;
    const YamlNode* op = node_.find("op");
    const YamlNode* param = node_.find("param");
    if ((op == nullptr) == (param == nullptr)) {
      refuse(path_, node_, "needs exactly one of `op: PATTERN` and `param: PATTERN`");
      return false;
    }
    row.form = param != nullptr                                              ? ShardRow::kParam
               : node_.find("in") != nullptr || node_.find("out") != nullptr ? ShardRow::kLayouts
                                                                             : ShardRow::kFactors;
    for (const YamlNode::Entry& entry : node_.entries) read_entry(entry, row);
    if (row.form == ShardRow::kParam && node_.find("layout") == nullptr)
      refuse(path_, node_, "needs `layout: [AXES per dim]`");
    if (row.form == ShardRow::kFactors && row.factors.empty() && fine_)
      refuse(path_, node_, "gives no axes; add `LETTER: AXES`, or `in` and `out`");
    return fine_;
  }

 private:
  void refuse(const std::string& path, const YamlNode& node, const std::string& fault) {
    reading_.faults.push_back({node.origin.where, complaint(path, node, fault)});
    fine_ = false;
  }

  void read_entry(const YamlNode::Entry& entry, ShardRow& row) {
    const std::string path = cat(path_, ".", entry.key);
    const YamlNode& value = entry.value;
    if (entry.key == "op" || entry.key == "param") {
      if (value.kind != YamlNode::kScalar || value.scalar.empty())
        refuse(path, value, "must be a pattern of names, like layers.*.attn.q_b");
      row.pattern = value.scalar;
    } else if (entry.key == "layout" && row.form == ShardRow::kParam) {
      read_layout(path, value, row.layout);
    } else if (entry.key == "in" && row.form == ShardRow::kLayouts) {
      read_layouts(path, value, row.in);
    } else if (entry.key == "out" && row.form == ShardRow::kLayouts) {
      read_layouts(path, value, row.out);
    } else if (entry.key.size() == 1 && entry.key[0] >= 'a' && entry.key[0] <= 'z' &&
               row.form == ShardRow::kFactors) {
      std::vector<std::string> axes;
      read_axes(path, value, axes);
      row.factors.emplace_back(entry.key[0], std::move(axes));
    } else {
      static const char* const kKeys[] = {
          "`LETTER: AXES` with one-letter factors, or `in` and `out`", "`op`, `in`, `out`",
          "`param`, `layout`"};
      reading_.faults.push_back(
          {entry.origin.where,
           cat("unknown key `", path, "`; this row may have ", kKeys[row.form])});
      fine_ = false;
    }
  }

  void read_layouts(const std::string& path, const YamlNode& node, std::vector<LayoutSpec>& out) {
    if (node.kind != YamlNode::kList)
      return refuse(path, node,
                    "must be a list with one layout per tensor, like [[dp, tp], [tp, ~]]");
    for (size_t i = 0; i < node.items.size(); ++i) {
      out.emplace_back();
      read_layout(cat(path, ".", i), node.items[i], out.back());
    }
  }

  /// [dp, ~, [cp, tp]] or the text form "[dp, -, cp tp] +{ep}".
  void read_layout(const std::string& path, const YamlNode& node, LayoutSpec& out) {
    if (node.kind == YamlNode::kScalar && !node.scalar.empty() && node.scalar[0] == '[')
      return read_layout_text(path, node, out);
    if (node.kind != YamlNode::kList)
      return refuse(path, node,
                    "must be a layout: a list with the axes of each dim, like [dp, ~, [cp, tp]]");
    for (size_t i = 0; i < node.items.size(); ++i) {
      out.dims.emplace_back();
      read_axes(cat(path, ".", i), node.items[i], out.dims.back());
    }
    check_once(path, node, out);
  }

  void read_layout_text(const std::string& path, const YamlNode& node, LayoutSpec& out) {
    const std::string& text = node.scalar;
    const size_t close = text.find(']');
    std::string rest = close == std::string::npos ? "" : text.substr(close + 1);
    rest.erase(std::remove(rest.begin(), rest.end(), ' '), rest.end());
    const bool has_partial = rest.size() > 3 && rest.rfind("+{", 0) == 0 && rest.back() == '}';
    if (close == std::string::npos || (!rest.empty() && !has_partial))
      return refuse(path, node, "must look like \"[dp, -, cp tp] +{ep}\"");
    const auto words = [](const std::string& list) {
      std::vector<std::string> out_words;
      std::string word;
      for (const char c : list + " ") {
        if (c != ' ')
          word += c;
        else if (!word.empty())
          out_words.push_back(std::move(word)), word.clear();
      }
      return out_words;
    };
    std::string dim;
    for (const char c : text.substr(1, close - 1) + ",") {
      if (c != ',') {
        dim += c;
        continue;
      }
      std::vector<std::string> axes = words(dim);
      if (axes.size() == 1 && axes[0] == "-") axes.clear();
      out.dims.push_back(std::move(axes));
      dim.clear();
    }
    if (has_partial) {
      const size_t open = text.find('{', close);
      out.partial = words(text.substr(open + 1, text.rfind('}') - open - 1));
    }
    for (const auto& axes : out.dims)
      for (const std::string& axis : axes) check_axis(path, node, axis);
    for (const std::string& axis : out.partial) check_axis(path, node, axis);
    check_once(path, node, out);
  }

  void read_axes(const std::string& path, const YamlNode& node, std::vector<std::string>& out) {
    if (is_none(node)) return;
    if (node.kind == YamlNode::kScalar) {
      check_axis(path, node, node.scalar);
      out.push_back(node.scalar);
    } else if (node.kind == YamlNode::kList) {
      for (const YamlNode& item : node.items) {
        if (item.kind != YamlNode::kScalar)
          return refuse(path, node, "must be an axis or a list of axes");
        check_axis(path, item, item.scalar);
        out.push_back(item.scalar);
      }
    } else {
      refuse(path, node, "must be an axis, a list of axes, or ~ for none");
    }
  }

  void check_axis(const std::string& path, const YamlNode& node, const std::string& axis) {
    const auto bad = [](char c) {
      return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_');
    };
    if (axis.empty() || std::any_of(axis.begin(), axis.end(), bad) ||
        (axis[0] >= '0' && axis[0] <= '9'))
      refuse(path, node, "is no axis name");
  }

  void check_once(const std::string& path, const YamlNode& node, const LayoutSpec& layout) {
    std::vector<std::string> seen;
    const auto visit = [&](const std::vector<std::string>& axes) {
      for (const std::string& axis : axes) {
        if (std::find(seen.begin(), seen.end(), axis) != seen.end())
          refuse(path, node,
                 cat("uses axis `", axis, "` twice; an axis splits one dim of a tensor"));
        seen.push_back(axis);
      }
    };
    for (const auto& axes : layout.dims) visit(axes);
    visit(layout.partial);
  }

  const YamlNode& node_;
  std::string path_;
  Reading& reading_;
  bool fine_ = true;
};

}  // namespace

std::vector<ShardRow> read_shard_rows(const YamlNode& node, const std::string& path,
                                      Reading& reading) {
  std::vector<ShardRow> rows;
  if (node.kind != YamlNode::kList) {
    reading.faults.push_back(
        {node.origin.where,
         complaint(path, node, cat("must be a list of rows, not ", node.kind_name()))});
    return rows;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    ShardRow row;
    if (RowReader(node.items[i], cat(path, ".", i), reading).run(row))
      rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace moetrain
