// Resolved YAML: every value of every row with where it came from.
#include <algorithm>

#include "base/text.h"
#include "config/field.h"
#include "config/scalar.h"
#include "config/schema.h"
#include "config/value_text.h"

namespace moetrain {

namespace {

std::string origin_text(const Origin& origin) {
  switch (origin.kind) {
    case Origin::kDefault:
      return "default";
    case Origin::kHfConfig:
      return "hf_config " + origin.where;
    case Origin::kFile:
      return origin.where;
    case Origin::kSet:
      return origin.where;
    case Origin::kAuto:
      return "auto: " + origin.where;
  }
  return "";
}

class Printer {
 public:
  explicit Printer(const Config& config) : config_(config) {}

  void print(const Fields& rows, const std::string& path, size_t indent) {
    for (const Field& field : rows) {
      const std::string inner = path.empty() ? field.name : cat(path, ".", field.name);
      const Group* group = std::get_if<Group>(&field.target);
      if (group != nullptr && (!group->present || group->present())) {
        out_ += cat(std::string(indent, ' '), field.name, ":\n");
        print(group->fields(), inner, indent + 2);
      } else if (inner == "model.hf_config") {
        print_hf_config(field, indent);
      } else {
        line(cat(std::string(indent, ' '), field.name, ": ", value_text(field)), origin(inner));
      }
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string origin(const std::string& path) const {
    const auto found = config_.origins.find(path);
    return found == config_.origins.end() ? "default" : origin_text(found->second);
  }
  void line(std::string text, std::string comment) {
    constexpr size_t kColumn = 44;
    std::replace(comment.begin(), comment.end(), '\n', ' ');
    if (text.size() < kColumn) text.resize(kColumn, ' ');
    out_ += cat(text, "  # ", comment, "\n");
  }
  /// Its values stand below, so that this text can be loaded from anywhere.
  void print_hf_config(const Field& field, size_t indent) {
    const std::string value = value_text(field);
    line(cat(std::string(indent, ' '), "hf_config: null"),
         value == "null" ? "default"
                         : cat("read from ", value, ", its values are written out here"));
  }

  const Config& config_;
  std::string out_;
};

}  // namespace

std::string show_config(const Config& config) {
  Config copy = config;
  Printer printer(config);
  printer.print(describe(copy), "", 0);
  return printer.take();
}

}  // namespace moetrain
