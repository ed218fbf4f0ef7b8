// Builds Nodes from JSON events, with the line of every key, and sorts out which keys describe the
// model.
#include "config/hf_config.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/text.h"
#include "config/field.h"

namespace moetrain {

namespace {

using Json = nlohmann::json;

/// Reads text and counts lines, so that SAX events, which bring no position, can be placed.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  int64_t* line = nullptr;

  const char& operator*() const { return *at; }
  Cursor& operator++() {
    if (*at == '\n' && line != nullptr) ++*line;
    ++at;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  JsonBuilder(std::string name, std::vector<Diagnostic>& faults)
      : name_(std::move(name)), faults_(faults), stack_(1) {}

  bool null() override { return add(make(YamlNode::kNull)); }
  bool boolean(bool value) override { return add_scalar(value ? "true" : "false", false); }
  bool number_integer(number_integer_t value) override { return add_scalar(cat(value), false); }
  bool number_unsigned(number_unsigned_t value) override { return add_scalar(cat(value), false); }
  bool number_float(number_float_t, const string_t& text) override {
    return add_scalar(text, false);
  }
  bool string(string_t& value) override { return add_scalar(value, true); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(YamlNode::kMap); }
  bool start_array(std::size_t) override { return open(YamlNode::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    stack_.back().key = value;
    stack_.back().key_where = where();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    std::string reason = error.what();
    if (const size_t cut = reason.find("] "); cut != std::string::npos) reason.erase(0, cut + 2);
    faults_.push_back({where(), "not valid JSON: " + reason});
    return false;
  }

  YamlNode take() {
    return stack_[0].node.items.empty() ? YamlNode{} : std::move(stack_[0].node.items[0]);
  }

  int64_t line = 1;

 private:
  struct Frame {
    YamlNode node;
    std::string key, key_where;
  };

  std::string where() const { return cat(name_, ":", line); }
  YamlNode make(YamlNode::Kind kind) const {
    YamlNode node;
    node.kind = kind;
    node.origin = {Origin::kHfConfig, where()};
    return node;
  }
  bool add_scalar(std::string text, bool quoted) {
    YamlNode node = make(YamlNode::kScalar);
    node.scalar = std::move(text);
    node.quoted = quoted;
    return add(std::move(node));
  }
  bool open(YamlNode::Kind kind) {
    constexpr size_t kDeepest = 64;
    if (stack_.size() > kDeepest) {
      faults_.push_back({where(), "nested too deeply for a config.json"});
      return false;
    }
    stack_.emplace_back();
    stack_.back().node = make(kind);
    return true;
  }
  bool close() {
    YamlNode done = std::move(stack_.back().node);
    stack_.pop_back();
    return add(std::move(done));
  }
  bool add(YamlNode node) {
    Frame& top = stack_.back();
    if (top.node.kind != YamlNode::kMap) {
      top.node.items.push_back(std::move(node));
    } else if (top.node.find(top.key) != nullptr) {
      faults_.push_back({top.key_where, cat("duplicate key `", top.key, "`; keep one of them")});
    } else {
      node.origin.where = top.key_where;
      top.node.entries.push_back({top.key, {Origin::kHfConfig, top.key_where}, std::move(node)});
    }
    return true;
  }

  std::string name_;
  std::vector<Diagnostic>& faults_;
  std::vector<Frame> stack_;
};

bool is_known(const Fields& rows, const std::string& key) {
  for (const Field& field : rows)
    if (field.name == key) return key != "hf_config";
  return false;
}

void rename(YamlNode& map, const std::string& from, const std::string& to) {
  if (map.kind != YamlNode::kMap || map.find(to) != nullptr) return;
  for (YamlNode::Entry& entry : map.entries)
    if (entry.key == from) entry.key = to;
}

void keep_known(YamlNode& map, const Fields& rows) {
  std::erase_if(map.entries, [&](const YamlNode::Entry& e) { return !is_known(rows, e.key); });
}

/// Newer exports write rope settings as one map {rope_theta, rope_type, ...}, "default" meaning no
/// scaling.
void unify_rope(YamlNode& document) {
  if (YamlNode* parameters = document.find("rope_parameters");
      parameters != nullptr && parameters->kind == YamlNode::kMap) {
    if (const YamlNode* theta = parameters->find("rope_theta");
        theta != nullptr && document.find("rope_theta") == nullptr) {
      YamlNode copy = *theta;
      document.entries.push_back({"rope_theta", copy.origin, copy});
    }
    rename(document, "rope_parameters", "rope_scaling");
  }
  YamlNode* scaling = document.find("rope_scaling");
  if (scaling == nullptr || scaling->kind != YamlNode::kMap) return;
  rename(*scaling, "rope_type", "type");
  const YamlNode* type = scaling->find("type");
  if (type != nullptr && type->scalar == "default") {
    const Origin origin = scaling->origin;
    *scaling = YamlNode{};
    scaling->origin = origin;
    return;
  }
  RopeScaling scratch;
  keep_known(*scaling, describe(scratch));
}

/// "n_shared_experts": null is how such a file says that there are none.
void unify_shared_experts(YamlNode& document) {
  YamlNode* shared = document.find("n_shared_experts");
  if (shared == nullptr || shared->kind != YamlNode::kNull) return;
  shared->kind = YamlNode::kScalar;
  shared->scalar = "0";
}

}  // namespace

YamlNode read_hf_config(const std::string& path, std::vector<Diagnostic>& faults) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream buffer;
  if (!file || !(buffer << file.rdbuf())) {
    faults.push_back({path, "model.hf_config: cannot read this file"});
    return {};
  }
  const std::string text = buffer.str();
  const size_t before = faults.size();
  JsonBuilder builder(path, faults);
  Json::sax_parse(Cursor{text.data(), &builder.line}, Cursor{text.data() + text.size(), nullptr},
                  &builder);
  if (faults.size() != before) return {};
  YamlNode document = builder.take();
  if (document.kind != YamlNode::kMap) {
    faults.push_back({path, "model.hf_config: a config.json is an object of keys"});
    return {};
  }
  unify_rope(document);
  unify_shared_experts(document);
  rename(document, "dtype", "torch_dtype");
  ModelConfig scratch;
  keep_known(document, describe(scratch));
  return document;
}

}  // namespace moetrain
