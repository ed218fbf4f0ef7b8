// Strict YAML to YamlNode; the only door to yaml-cpp.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/node.h"

namespace moetrain {

/// Parses one YAML document. Faults (syntax, tabs, duplicates, anchors, tags, several documents,
/// bytes that are not UTF-8) are appended to `faults`; what could be read is returned. Positions
/// are `name:line:column`.
YamlNode parse_yaml(const std::string& text, const std::string& name,
                    std::vector<Diagnostic>& faults);

/// One `key.path=value` setting; the value is a YAML flow value. Every position in it is `--set
/// key.path=value`. Empty key path and nothing else when it cannot be read (a fault is appended).
struct Setting {
  std::vector<std::string> path;
  YamlNode value;
};
Setting parse_setting(const std::string& setting, std::vector<Diagnostic>& faults);

/// Puts the setting into the document, over what stands there; makes missing maps on the way.
void apply_setting(YamlNode& document, const Setting& setting, std::vector<Diagnostic>& faults);

}  // namespace moetrain
