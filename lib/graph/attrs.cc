// Attribute look-up and text form.
#include "graph/attrs.h"

#include <algorithm>

#include "base/error.h"
#include "graph/op.h"

namespace moetrain {

Attrs::Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : items_) {
    if (key == name) return &value;
  }
  return nullptr;
}

namespace {

template <class T>
const T& typed(const AttrValue* value, std::string_view name) {
  MT_CHECK(value != nullptr, "no attribute '", name, "'");
  const T* typed_value = std::get_if<T>(value);
  MT_CHECK(typed_value != nullptr, "attribute '", name, "' has another type");
  return *typed_value;
}

}  // namespace

int64_t Attrs::integer(std::string_view name) const { return typed<int64_t>(find(name), name); }
double Attrs::real(std::string_view name) const { return typed<double>(find(name), name); }
const std::string& Attrs::text(std::string_view name) const {
  return typed<std::string>(find(name), name);
}
const std::vector<int64_t>& Attrs::integers(std::string_view name) const {
  return typed<std::vector<int64_t>>(find(name), name);
}
const std::vector<double>& Attrs::reals(std::string_view name) const {
  return typed<std::vector<double>>(find(name), name);
}
const std::vector<BodyPart>& Attrs::body(std::string_view name) const {
  return *typed<Body>(find(name), name);
}
int64_t Attrs::integer_or(std::string_view name, int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}
double Attrs::real_or(std::string_view name, double otherwise) const {
  return has(name) ? real(name) : otherwise;
}

Attrs& Attrs::set(std::string name, AttrValue value) {
  auto at = std::lower_bound(items_.begin(), items_.end(), name,
                             [](const auto& item, const auto& key) { return item.first < key; });
  if (at != items_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    items_.insert(at, {std::move(name), std::move(value)});
  }
  return *this;
}

namespace {

struct Printer {
  std::string operator()(int64_t v) const { return cat(v); }
  std::string operator()(double v) const { return cat(v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<int64_t>& v) const { return "[" + join(v, ",") + "]"; }
  std::string operator()(const std::vector<double>& v) const {
    if (v.size() > 4) return cat("[", v.size(), " reals]");
    return "[" + join(v, ",") + "]";
  }
  std::string operator()(const Body& v) const {
    std::string text;
    for (const BodyPart& part : *v) {
      text += cat(text.empty() ? "" : " | ", part.op->name);
      if (const std::string attrs = to_string(part.attrs); !attrs.empty()) text += " " + attrs;
    }
    return "[" + text + "]";
  }
};

}  // namespace

std::string to_string(const Attrs& attrs) {
  if (attrs.items().empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : attrs.items()) {
    if (text.size() > 1) text += ", ";
    text += name + "=" + std::visit(Printer{}, value);
  }
  return text + "}";
}

}  // namespace moetrain
