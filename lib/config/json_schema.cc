// JSON Schema of the YAML file, written from the rows, for editors that complete and check while
// typing.
#include <cmath>

#include "base/text.h"
#include "config/field.h"
#include "config/scalar.h"
#include "config/schema.h"
#include "config/value_text.h"

namespace moetrain {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string quoted_list(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) parts.push_back(quoted(word));
  return cat("[", join(parts, ", "), "]");
}

/// The members of one property's schema, in order.
using Members = std::vector<std::pair<std::string, std::string>>;

std::string object(const Members& members, const std::string& indent) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : members)
    lines.push_back(cat(indent, "  ", quoted(key), ": ", value));
  return cat("{\n", join(lines, ",\n"), "\n", indent, "}");
}

std::string one_line(const Members& members) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : members) parts.push_back(cat(quoted(key), ": ", value));
  return cat("{", join(parts, ", "), "}");
}

Members rows_schema(const Fields& rows, const std::string& indent);

class Writer {
 public:
  Writer(const Field& field, std::string indent) : field_(field), indent_(std::move(indent)) {}

  Members run() {
    Members members =
        std::visit([this](const auto& target) { return type_of(target); }, field_.target);
    std::string help = field_.help;
    if (!field_.unit_name.empty()) help += cat(" [", field_.unit_name, "]");
    members.emplace_back("description", quoted(help));
    return members;
  }

 private:
  /// Numbers may be spelled with a suffix or underscores, which to JSON is text.
  std::string number(const char* type) const {
    Members plain = {{"type", quoted(type)}};
    if (!field_.only.empty()) return one_line({{"enum", cat("[", join(field_.only, ", "), "]")}});
    if (std::isfinite(field_.low))
      plain.emplace_back(field_.above_low ? "exclusiveMinimum" : "minimum", real_text(field_.low));
    if (std::isfinite(field_.high))
      plain.emplace_back(field_.below_high ? "exclusiveMaximum" : "maximum",
                         real_text(field_.high));
    const char* pattern = field_.unit_name == "seconds" ? R"("^([0-9][0-9_.]*[smhd])+$")"
                          : field_.unit_name == "bytes"
                              ? R"("^[0-9][0-9_.]*([kKMGT]?B|[KMGT]iB)$")"
                              : R"("^[+-]?[0-9.][0-9_.]*([eE][+-]?[0-9]+)?[kKMBGT]?$")";
    return cat("{\"anyOf\": [", one_line(plain), ", {\"type\": \"string\", \"pattern\": ", pattern,
               "}]}");
  }
  std::string list(const char* type) const {
    Members members = {{"type", "\"array\""}, {"items", number(type)}};
    if (field_.length != 0) {
      members.emplace_back("minItems", cat(field_.length));
      members.emplace_back("maxItems", cat(field_.length));
    }
    return one_line(members);
  }
  std::string truth() const {
    return field_.only.empty() ? "{\"type\": \"boolean\"}"
                               : cat("{\"const\": ", field_.only[0], "}");
  }
  Members any_of(const std::vector<std::string>& parts) const {
    return {{"anyOf", cat("[", join(parts, ", "), "]")}};
  }
  Members with_default(Members members) const {
    if (!field_.is_required) members.emplace_back("default", json_default());
    return members;
  }
  std::string json_default() const {
    const std::string value = value_text(field_);
    const bool verbatim = value == "true" || value == "false" || value == "null" ||
                          value[0] == '[' || value[0] == '{' || value[0] == '"' ||
                          (value.find_first_not_of("0123456789.e+-") == std::string::npos);
    return verbatim ? value : quoted(value);
  }
  static std::string word(const char* text) { return cat("{\"const\": ", quoted(text), "}"); }
  static std::string null() { return "{\"type\": \"null\"}"; }

  Members type_of(bool*) const { return with_default(any_of({truth()})); }
  Members type_of(int64_t*) const { return with_default(any_of({number("integer")})); }
  Members type_of(double*) const { return with_default(any_of({number("number")})); }
  Members type_of(std::string*) const {
    if (!field_.only.empty()) return with_default({{"enum", quoted_list(field_.only)}});
    return with_default({{"type", "\"string\""}});
  }
  Members type_of(std::optional<int64_t>*) const {
    return with_default(any_of({number("integer"), null()}));
  }
  Members type_of(std::optional<double>*) const {
    return with_default(any_of({number("number"), null()}));
  }
  Members type_of(std::optional<std::string>*) const {
    return with_default({{"type", R"(["string", "null"])"}});
  }
  Members type_of(Auto<int64_t>*) const {
    return with_default(any_of({number("integer"), word("auto")}));
  }
  Members type_of(Auto<bool>*) const { return with_default(any_of({truth(), word("auto")})); }
  Members type_of(Auto<std::vector<int64_t>>*) const {
    return with_default(any_of({list("integer"), word("auto")}));
  }
  Members type_of(std::vector<int64_t>*) const {
    return with_default(any_of({list("integer"), number("integer")}));
  }
  Members type_of(std::vector<double>*) const {
    return with_default(any_of(
        {list("number"), R"({"type": "string", "pattern": "^[0-9_.e+-]+(, *[0-9_.e+-]+)*$"})",
         number("number")}));
  }
  Members type_of(NamedSizes*) const {
    return with_default({{"type", "\"object\""}, {"additionalProperties", number("integer")}});
  }
  Members type_of(std::vector<ShardRow>*) const {
    const std::string op = R"({"required": ["op"]})",
                      param = R"({"required": ["param", "layout"]})";
    const std::string any = cat("[", op, ", ", param, "]");
    return with_default(
        {{"type", "\"array\""}, {"items", one_line({{"type", "\"object\""}, {"anyOf", any}})}});
  }
  Members type_of(const Choice& c) const { return with_default({{"enum", quoted_list(c.names)}}); }
  Members type_of(const Group& g) const {
    Members members = rows_schema(g.fields(), indent_);
    if (g.present) members[0].second = R"(["object", "null"])";
    return members;
  }
  Members type_of(const Records& r) const {
    r.resize(1);
    return {{"type", "\"array\""},
            {"items", object(rows_schema(r.at(0), indent_ + "  "), indent_ + "  ")}};
  }

  const Field& field_;
  std::string indent_;
};

Members rows_schema(const Fields& rows, const std::string& indent) {
  Members properties;
  std::vector<std::string> required;
  for (const Field& field : rows) {
    properties.emplace_back(field.name,
                            object(Writer(field, indent + "    ").run(), indent + "    "));
    if (field.is_required && field.name != "hf_config") required.push_back(field.name);
  }
  Members members = {{"type", "\"object\""},
                     {"additionalProperties", "false"},
                     {"properties", object(properties, indent + "  ")}};
  bool from_file = false;  // a section with hf_config may leave everything to that file
  for (const Field& field : rows) from_file = from_file || field.name == "hf_config";
  if (!required.empty() && from_file)
    members.emplace_back(
        "anyOf",
        cat("[{\"required\": [\"hf_config\"]}, {\"required\": ", quoted_list(required), "}]"));
  else if (!required.empty())
    members.emplace_back("required", quoted_list(required));
  return members;
}

}  // namespace

std::string config_schema() {
  Config config;
  Members root = {{"$schema", "\"https://json-schema.org/draft/2020-12/schema\""},
                  {"title", "\"moetrain configuration\""}};
  for (auto& member : rows_schema(describe(config), "")) root.push_back(std::move(member));
  root.emplace_back("required", R"(["model", "data", "train"])");
  return object(root, "") + "\n";
}

}  // namespace moetrain
