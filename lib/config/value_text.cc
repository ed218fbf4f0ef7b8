// One overload per type of knob.
#include "config/value_text.h"

#include <cstdio>

#include "base/text.h"
#include "config/scalar.h"

namespace moetrain {

namespace {

std::string layout_text(const LayoutSpec& layout) {
  std::vector<std::string> dims;
  for (const auto& axes : layout.dims) dims.push_back(axes.empty() ? "-" : join(axes, " "));
  std::string text = cat("[", join(dims, ", "), "]");
  if (!layout.partial.empty()) text += cat(" +{", join(layout.partial, " "), "}");
  return cat('"', text, '"');
}

std::string layouts_text(const std::vector<LayoutSpec>& layouts) {
  std::vector<std::string> parts;
  for (const LayoutSpec& layout : layouts) parts.push_back(layout_text(layout));
  return cat("[", join(parts, ", "), "]");
}

std::string row_text(const ShardRow& row) {
  std::string text =
      cat(row.form == ShardRow::kParam ? "{param: " : "{op: ", yaml_quoted(row.pattern));
  for (const auto& [letter, axes] : row.factors)
    text += cat(", \"", letter, "\": [", join(axes, ", "), "]");
  if (!row.in.empty()) text += ", in: " + layouts_text(row.in);
  if (!row.out.empty()) text += ", out: " + layouts_text(row.out);
  if (row.form == ShardRow::kParam) text += ", layout: " + layout_text(row.layout);
  return text + "}";
}

std::string map_text(const Fields& rows) {
  std::vector<std::string> parts;
  for (const Field& field : rows) {
    const std::string value = value_text(field);
    if (value != "null") parts.push_back(cat(field.name, ": ", value));
  }
  return cat("{", join(parts, ", "), "}");
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return cat(value); }
std::string text_of(double value) { return real_text(value); }
std::string text_of(const std::string& value) { return yaml_quoted(value); }
template <class T>
std::string text_of(const std::vector<T>& values) {
  std::vector<std::string> parts;
  for (const T& value : values) parts.push_back(text_of(value));
  return cat("[", join(parts, ", "), "]");
}
std::string text_of(const std::vector<ShardRow>& rows) {
  std::vector<std::string> parts;
  for (const ShardRow& row : rows) parts.push_back(row_text(row));
  return cat("[", join(parts, ", "), "]");
}
std::string text_of(const NamedSizes& sizes) {
  std::vector<std::string> parts;
  for (const auto& [name, size] : sizes) parts.push_back(cat(name, ": ", size));
  return cat("{", join(parts, ", "), "}");
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "null";
}
template <class T>
std::string text_of(const Auto<T>& value) {
  return value.is_auto() ? "auto" : text_of(*value);
}

struct Writer {
  template <class T>
  std::string operator()(T* place) const {
    return text_of(*place);
  }
  std::string operator()(const Choice& c) const { return c.names[static_cast<size_t>(c.get())]; }
  std::string operator()(const Group& g) const {
    return g.present && !g.present() ? "null" : map_text(g.fields());
  }
  std::string operator()(const Records& r) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < r.size(); ++i) parts.push_back(map_text(r.at(i)));
    return cat("[", join(parts, ", "), "]");
  }
};

}  // namespace

std::string yaml_quoted(const std::string& text) {
  bool plain = !text.empty() && text != "null" && text != "~" && text != "Null" && text != "NULL" &&
               text[0] != '-';
  for (const char c : text)
    plain = plain && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '.' || c == '/');
  if (plain) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string value_text(const Field& field) { return std::visit(Writer{}, field.target); }

}  // namespace moetrain
