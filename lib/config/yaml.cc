// Builds Nodes from yaml-cpp's events, which unlike its tree keep duplicates, quotes and positions.
#include "config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>

#include "base/text.h"

namespace moetrain {

namespace {

class Builder : public YAML::EventHandler {
 public:
  Builder(Origin::Kind kind, std::string name, std::vector<Diagnostic>& faults)
      : kind_(kind), name_(std::move(name)), faults_(faults) {}

  void OnDocumentStart(const YAML::Mark&) override { stack_.assign(1, Frame{}); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_extras(mark, "", anchor);
    add(make(YamlNode::kNull, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases (*name) are not read here; write the value out");
    add(make(YamlNode::kNull, mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_extras(mark, tag, anchor);
    YamlNode node = make(YamlNode::kScalar, mark);
    node.scalar = value;
    node.quoted = tag == "!";
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

  std::string where(const YAML::Mark& mark) const {
    if (kind_ == Origin::kSet) return name_;
    return cat(name_, ":", mark.line + 1, ":", mark.column + 1);
  }
  /// The document, or null if the text had none.
  YamlNode take() {
    if (stack_.empty() || stack_[0].node.items.empty()) return {};
    return std::move(stack_[0].node.items[0]);
  }

 private:
  struct Frame {
    YamlNode node;  // of the bottom frame, items holds the document
    YamlNode key;
    bool has_key = false;
  };

  YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.origin = {kind_, where(mark)};
    return node;
  }
  void refuse(const YAML::Mark& mark, std::string message) {
    faults_.push_back({where(mark), std::move(message)});
  }
  void refuse_extras(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(mark, "anchors (&name) are not read here; write the value out");
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(mark, cat("tags (", tag, ") are not read here; the key decides the type"));
  }
  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    refuse_extras(mark, tag, anchor);
    stack_.emplace_back();
    stack_.back().node = make(kind, mark);
  }
  void close() {
    YamlNode done = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(done));
  }
  void add(YamlNode node) {
    Frame& top = stack_.back();
    if (top.node.kind != YamlNode::kMap) {
      top.node.items.push_back(std::move(node));
      return;
    }
    if (!top.has_key) {
      top.has_key = true;
      top.key = std::move(node);
      return;
    }
    top.has_key = false;
    if (top.key.kind != YamlNode::kScalar) {
      faults_.push_back(
          {top.key.origin.where, cat("a key must be a word, not ", top.key.kind_name())});
      return;
    }
    for (const YamlNode::Entry& entry : top.node.entries) {
      if (entry.key != top.key.scalar) continue;
      faults_.push_back({top.key.origin.where, cat("duplicate key `", entry.key, "` (first at ",
                                                   entry.origin.where, "); keep one of them")});
      return;
    }
    top.node.entries.push_back({top.key.scalar, top.key.origin, std::move(node)});
  }

  Origin::Kind kind_;
  std::string name_;
  std::vector<Diagnostic>& faults_;
  std::vector<Frame> stack_;
};

/// Length of the UTF-8 sequence at `i`, or 0 if it is not one.
size_t utf8_length(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u;
  };
  const unsigned first = byte(i);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xF0 && first < 0xF5   ? 4
                   : first >= 0xE0 && first < 0xF0 ? 3
                   : first >= 0xC2 && first < 0xE0 ? 2
                                                   : 0;
  for (size_t k = 1; k < n; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  return n;
}

/// Faults of plain text that yaml-cpp would accept or misread: false if parsing makes no sense.
bool check_text(const std::string& text, const std::string& name, std::vector<Diagnostic>& faults) {
  constexpr size_t kLargest = 4 << 20;
  if (text.size() > kLargest) {
    faults.push_back({name, "is larger than 4 MiB; this is no configuration"});
    return false;
  }
  bool fine = true, indent = true;
  size_t line = 1, start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    const std::string where = cat(name, ":", line, ":", i - start + 1);
    if (n == 0) {
      faults.push_back({where, "the file is not UTF-8 text"});
      return false;
    }
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      faults.push_back({where, "control character in the file; remove it"});
      return false;
    }
    if (c == '\n') {
      ++line;
      start = i + 1;
      indent = true;
    } else if (c == '\t' && indent) {
      faults.push_back({where, "tab in the indentation; use spaces"});
      fine = false;
      indent = false;
    } else if (c != ' ') {
      indent = false;
    }
    i += n;
  }
  return fine;
}

YamlNode parse(const std::string& text, Origin::Kind kind, const std::string& name,
               std::vector<Diagnostic>& faults) {
  Builder builder(kind, name, faults);
  YamlNode document;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      document = builder.take();
      Builder second(kind, name, faults);
      if (parser.HandleNextDocument(second))
        faults.push_back({second.take().origin.where,
                          "a second document starts here; one file is one document"});
    }
  } catch (const YAML::Exception& error) {
    faults.push_back({error.mark.is_null() ? name : builder.where(error.mark),
                      cat("not valid YAML: ", error.msg)});
  }
  return document;
}

}  // namespace

YamlNode parse_yaml(const std::string& text, const std::string& name,
                    std::vector<Diagnostic>& faults) {
  if (!check_text(text, name, faults)) return {};
  return parse(text, Origin::kFile, name, faults);
}

Setting parse_setting(const std::string& setting, std::vector<Diagnostic>& faults) {
  const std::string where = "--set " + setting;
  const size_t equals = setting.find('=');
  const std::string usage = "expected key.path=value, like parallel.tensor=2";
  if (equals == std::string::npos || equals == 0) {
    faults.push_back({where, usage});
    return {};
  }
  Setting result;
  std::string part;
  for (const char c : setting.substr(0, equals) + ".") {
    if (c != '.') {
      part += c;
    } else if (part.empty()) {
      faults.push_back({where, usage});
      return {};
    } else {
      result.path.push_back(std::move(part));
      part.clear();
    }
  }
  const std::string value = setting.substr(equals + 1);
  if (value.find_first_not_of(" \t") == std::string::npos) {
    faults.push_back({where, "the value is missing; write null for none"});
    return {};
  }
  const size_t before = faults.size();
  if (check_text(value, where, faults)) result.value = parse(value, Origin::kSet, where, faults);
  if (faults.size() != before) {
    faults.resize(before + 1);
    faults.back().where = where;
    return {};
  }
  return result;
}

void apply_setting(YamlNode& document, const Setting& setting, std::vector<Diagnostic>& faults) {
  if (setting.path.empty()) return;
  YamlNode* node = &document;
  for (size_t i = 0; i < setting.path.size(); ++i) {
    const std::string& key = setting.path[i];
    if (node->kind == YamlNode::kList) {
      const bool number = !key.empty() && key.size() < 7 &&
                          key.find_first_not_of("0123456789") == std::string::npos;
      const size_t index = number ? std::stoul(key) : node->items.size();
      if (index >= node->items.size()) {
        faults.push_back(
            {setting.value.origin.where,
             cat("`", key, "` is no entry of the list `",
                 join(std::vector<std::string>(setting.path.begin(),
                                               setting.path.begin() + static_cast<long>(i)),
                      "."),
                 "` (it has ", node->items.size(), "; the first is 0)")});
        return;
      }
      node = &node->items[index];
      continue;
    }
    if (node->kind != YamlNode::kMap) {  // absent or a scalar: the setting wins
      *node = YamlNode{};
      node->kind = YamlNode::kMap;
      node->origin = setting.value.origin;
    }
    YamlNode* next = node->find(key);
    if (next == nullptr) {
      node->entries.push_back({key, setting.value.origin, YamlNode{}});
      next = &node->entries.back().value;
    }
    node = next;
  }
  *node = setting.value;
  return;
}

}  // namespace moetrain
