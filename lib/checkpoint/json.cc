// Strict JSON reading on top of nlohmann-json's event parser; the only file that includes it.
#include "checkpoint/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr size_t kMaxDepth = 64;

/// Builds a Json from parser events; every event returns false to stop.
class Builder {
 public:
  using Kind = Json::Kind;

  explicit Builder(Json* root) : root_(root) {}
  const std::string& error() const { return error_; }

  bool null() { return put({}); }
  bool boolean(bool value) {
    Json j;
    j.kind = Kind::kBool;
    j.boolean = value;
    return put(std::move(j));
  }
  bool number_integer(int64_t value) {
    Json j;
    j.kind = Kind::kInt;
    j.integer = value;
    j.number = static_cast<double>(value);
    return put(std::move(j));
  }
  bool number_unsigned(uint64_t value) {
    if (value <= static_cast<uint64_t>(INT64_MAX))
      return number_integer(static_cast<int64_t>(value));
    return number_float(static_cast<double>(value), {});
  }
  bool number_float(double value, const std::string&) {
    Json j;
    j.kind = Kind::kNumber;
    j.number = value;
    return put(std::move(j));
  }
  bool string(std::string& value) {
    Json j;
    j.kind = Kind::kString;
    j.string = std::move(value);
    return put(std::move(j));
  }
  bool binary(std::vector<uint8_t>&) { return fail("binary value"); }
  bool start_object(size_t) { return open(Kind::kObject); }
  bool start_array(size_t) { return open(Kind::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!seen_.back().insert(name).second) return fail(cat("duplicate key \"", name, "\""));
    stack_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& problem) {
    std::string text = problem.what();
    const size_t cut = text.find("] ");
    return fail(cut == std::string::npos ? text : text.substr(cut + 2));
  }

 private:
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  Json* place(Json value) {
    if (stack_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    stack_.back()->items.push_back(std::move(value));
    return &stack_.back()->items.back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Kind kind) {
    if (stack_.size() >= kMaxDepth) return fail("nested too deeply");
    Json j;
    j.kind = kind;
    stack_.push_back(place(std::move(j)));
    seen_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    seen_.pop_back();
    return true;
  }

  Json* root_;
  std::vector<Json*> stack_;  // a parent's items never grow while a child is open
  std::vector<std::unordered_set<std::string>> seen_;
  std::string error_;
};

/// Length of the well-formed UTF-8 sequence at the front of `s`, or 0.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = byte(0);
  const size_t n = c < 0x80                ? 1
                   : c >= 0xc2 && c < 0xe0 ? 2
                   : (c & 0xf0) == 0xe0    ? 3
                   : c >= 0xf0 && c < 0xf5 ? 4
                                           : 0;
  if (n == 0 || n > s.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (c == 0xe0 && byte(1) < 0xa0) return 0;
  if (c == 0xed && byte(1) > 0x9f) return 0;
  if (c == 0xf0 && byte(1) < 0x90) return 0;
  if (c == 0xf4 && byte(1) > 0x8f) return 0;
  return n;
}

}  // namespace

const Json* Json::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

Json parse_json(std::string_view text, const std::string& what) {
  Json root;
  Builder builder(&root);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw UserError(
        cat(what, ": not valid JSON: ", builder.error().empty() ? "unreadable" : builder.error()));
  }
  return root;
}

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out += "\\ufffd";
      text.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n);
  }
  return out += '"';
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

}  // namespace moetrain
