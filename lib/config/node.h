// A parsed document before it has types: what YAML text, config.json and --set all become.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/value.h"

namespace moetrain {

/// One value with its position. `quoted` scalars are text whatever they look like.
struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = kNull;
  std::string scalar;
  bool quoted = false;
  std::vector<YamlNode> items;
  std::vector<Entry> entries;
  Origin origin;

  const YamlNode* find(const std::string& key) const;
  YamlNode* find(const std::string& key);
  /// The value as a user would recognise it, shortened: for messages.
  std::string text() const;
  /// "a list", "a map", "nothing", "text", ...
  const char* kind_name() const;
};

struct YamlNode::Entry {
  std::string key;
  Origin origin;
  YamlNode value;
};

}  // namespace moetrain
