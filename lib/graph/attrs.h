// Attributes of a node: a small, ordered, comparable set of named constants.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace moetrain {

struct BodyPart;
/// What a fused node is made of: its parts one after the other. Two bodies are equal if they are one.
using Body = std::shared_ptr<const std::vector<BodyPart>>;

using AttrValue = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, Body>;

/// Named constants, kept sorted by name. Reading a missing name or a wrong type is a CHECK failure;
/// the `_or` forms give a default for missing names.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  const std::vector<int64_t>& integers(std::string_view name) const;
  const std::vector<double>& reals(std::string_view name) const;
  const std::vector<BodyPart>& body(std::string_view name) const;
  int64_t integer_or(std::string_view name, int64_t otherwise) const;
  double real_or(std::string_view name, double otherwise) const;

  Attrs& set(std::string name, AttrValue value);
  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool operator==(const Attrs&) const = default;

 private:
  const AttrValue* find(std::string_view name) const;

  std::vector<std::pair<std::string, AttrValue>> items_;
};

struct OpDef;

/// One op of a body. The node's operands are those of its parts in a row, and so are its results.
struct BodyPart {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::string name;
  int inputs = 0, outputs = 0;
};

/// "{eps=1e-06, heads=8}" or "" when empty; of a body the names of its ops.
std::string to_string(const Attrs& attrs);

}  // namespace moetrain
