// Layouts as values: text form, validity against a tensor's shape, and the slice each rank holds.
#include "compile/shard/layout.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace moetrain {
namespace {

bool starts_with(const std::vector<Axis>& list, size_t at, const std::vector<Axis>& run) {
  return at + run.size() <= list.size() && std::equal(run.begin(), run.end(), list.begin() + at);
}

/// Spells `axes` with as few names as possible; runs of atoms that have a name of their own use it.
std::vector<std::string> spell(const Mesh& mesh, const std::vector<Axis>& axes) {
  std::vector<std::string> words;
  for (size_t i = 0; i < axes.size();) {
    size_t length = 1;
    std::string word = mesh.atoms[axes[i]].name;
    for (const auto& [name, run] : mesh.names) {
      if (run.size() > length && starts_with(axes, i, run)) {
        length = run.size();
        word = name;
      }
    }
    words.push_back(word);
    i += length;
  }
  return words;
}

std::string set_text(const Mesh& mesh, const std::vector<Axis>& axes) {
  return "{" + join(spell(mesh, axes), " ") + "}";
}

/// Cursor over a layout's text.
class Reader {
 public:
  Reader(const Mesh& mesh, const std::string& text) : mesh_(mesh), text_(text) {}

  Layout read() {
    Layout layout;
    expect('[');
    if (!accept(']')) {
      do {
        layout.dims.push_back(entry());
      } while (accept(','));
      expect(']');
    }
    while (true) {
      if (accept('+')) {
        append(layout.partial, axis_set());
      } else if (accept_word("max")) {
        append(layout.partial_max, axis_set());
      } else {
        break;
      }
    }
    skip();
    if (at_ != text_.size()) fail("unexpected text");
    return normalise(mesh_, layout);
  }

 private:
  static void append(std::vector<Axis>& to, const std::vector<Axis>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool accept_word(const std::string& word) {
    skip();
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(cat("'", c, "' expected"));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(cat("LAYOUT_ARG: ", why, " at column ", at_ + 1, " of layout '", text_,
                        "'; write e.g. [dp, -, (ep tp)] +{cp}"));
  }
  std::vector<Axis> word() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' ||
            text_[at_] == '.')) {
      ++at_;
    }
    if (begin == at_) fail("an axis name expected");
    return resolve_axis(mesh_, text_.substr(begin, at_ - begin));
  }
  std::vector<Axis> entry() {
    if (accept('-')) return {};
    if (!accept('(')) return word();
    std::vector<Axis> axes;
    while (!accept(')')) append(axes, word());
    return axes;
  }
  std::vector<Axis> axis_set() {
    std::vector<Axis> axes;
    expect('{');
    while (!accept('}')) append(axes, word());
    return axes;
  }

  const Mesh& mesh_;
  const std::string& text_;
  size_t at_ = 0;
};

void drop_unit_axes(const Mesh& mesh, std::vector<Axis>& axes) {
  std::erase_if(axes, [&](Axis a) { return mesh.atoms[a].size == 1; });
}

}  // namespace

std::vector<Axis> resolve_axis(const Mesh& mesh, const std::string& name) {
  if (!mesh.names.contains(name)) {
    for (size_t a = 0; a < mesh.atoms.size(); ++a) {
      if (mesh.atoms[a].name == name) return {static_cast<Axis>(a)};
    }
  }
  return mesh.resolve(name);
}

Layout replicated(size_t rank) {
  Layout layout;
  layout.dims.resize(rank);
  return layout;
}

Layout normalise(const Mesh& mesh, Layout layout) {
  for (auto& axes : layout.dims) drop_unit_axes(mesh, axes);
  drop_unit_axes(mesh, layout.partial);
  drop_unit_axes(mesh, layout.partial_max);
  std::sort(layout.partial.begin(), layout.partial.end());
  std::sort(layout.partial_max.begin(), layout.partial_max.end());
  return layout;
}

std::string axes_text(const Mesh& mesh, const std::vector<Axis>& axes) {
  if (axes.empty()) return "-";
  const std::vector<std::string> words = spell(mesh, axes);
  return words.size() == 1 ? words[0] : "(" + join(words, " ") + ")";
}

std::string to_string(const Mesh& mesh, const Layout& layout) {
  std::vector<std::string> entries;
  for (const auto& axes : layout.dims) entries.push_back(axes_text(mesh, axes));
  std::string text = "[" + join(entries, ", ") + "]";
  if (!layout.partial.empty()) text += " +" + set_text(mesh, layout.partial);
  if (!layout.partial_max.empty()) text += " max" + set_text(mesh, layout.partial_max);
  return text;
}

Layout parse_layout(const Mesh& mesh, const std::string& text) {
  return Reader(mesh, text).read();
}

void check_layout(const Mesh& mesh, const Layout& layout, const Shape& shape,
                  const std::string& what) {
  std::vector<Diagnostic> faults;
  if (layout.dims.size() != shape.size()) {
    throw UserError(cat("LAYOUT_RANK: layout ", to_string(mesh, layout), " has ",
                        layout.dims.size(), " entries, but ", what, " has shape ",
                        to_string(shape), "; give one entry per dim ('-' for an unsplit one)"));
  }
  std::set<Axis> used;
  auto use = [&](Axis a) {
    if (a < 0 || a >= static_cast<Axis>(mesh.atoms.size())) {
      faults.push_back({"", cat("LAYOUT_AXIS_UNKNOWN: axis number ", a, " in the layout of ", what,
                                "; the mesh has ", mesh.atoms.size(), " axes")});
    } else if (mesh.atoms[a].size > 1 && !used.insert(a).second) {
      faults.push_back({"", cat("LAYOUT_AXIS_REUSED: axis '", mesh.atoms[a].name,
                                "' is used more than once in ", to_string(mesh, layout), " of ",
                                what, "; an axis splits one dim at most")});
    }
  };
  for (const auto& axes : layout.dims) std::for_each(axes.begin(), axes.end(), use);
  std::for_each(layout.partial.begin(), layout.partial.end(), use);
  std::for_each(layout.partial_max.begin(), layout.partial_max.end(), use);
  if (faults.empty()) {
    for (size_t d = 0; d < shape.size(); ++d) {
      const int parts = mesh.size(layout.dims[d]);
      if (shape[d] % parts != 0) {
        faults.push_back({"", cat("LAYOUT_DIVIDE: dim ", d, " of ", what, " ", to_string(shape),
                                  " has ", shape[d], " entries and cannot be cut into ", parts,
                                  " equal parts by ", axes_text(mesh, layout.dims[d]),
                                  "; use fewer ranks there or a size that divides")});
      }
    }
  }
  if (!faults.empty()) throw UserError(faults);
}

Shape local_shape(const Mesh& mesh, const Layout& layout, const Type& global) {
  MT_CHECK(layout.dims.size() == global.shape.size(), "layout ", to_string(mesh, layout),
           " of shape ", to_string(global.shape));
  Shape local = global.shape;
  for (size_t d = 0; d < local.size(); ++d) {
    if (global.ragged && d == 1) continue;
    const int parts = mesh.size(layout.dims[d]);
    MT_CHECK(local[d] % parts == 0, "dim ", d, " of ", to_string(global.shape), " by ",
             to_string(mesh, layout));
    local[d] /= parts;
  }
  return local;
}

Box slice_of(const Mesh& mesh, const Layout& layout, const Shape& global, int rank) {
  MT_CHECK(layout.dims.size() == global.size(), "layout ", to_string(mesh, layout), " of shape ",
           to_string(global));
  Box box;
  for (size_t d = 0; d < global.size(); ++d) {
    const int64_t extent = global[d] / mesh.size(layout.dims[d]);
    box.begin.push_back(extent * mesh.index_along(rank, layout.dims[d]));
    box.extent.push_back(extent);
  }
  return box;
}

}  // namespace moetrain
