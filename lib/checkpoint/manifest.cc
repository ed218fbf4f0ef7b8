// Writing and strict reading of manifest.json.
#include "checkpoint/manifest.h"

#include <charconv>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/element.h"
#include "checkpoint/json.h"

namespace moetrain {
namespace {

constexpr std::string_view kFormat = "moetrain-checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kOpening = "{\n\"crc32c\": \"";
constexpr std::string_view kAfterCrc = "\",\n";

std::optional<uint32_t> parse_crc(std::string_view text) {
  uint32_t crc = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || r.ec != std::errc{} || r.ptr != text.data() + 8) return std::nullopt;
  return crc;
}

/// Reads members of one object; every fault names the file and the place.
class Reader {
 public:
  Reader(const Json& object, std::string where, std::initializer_list<std::string_view> keys)
      : object_(object), where_(std::move(where)) {
    require(object.is(Json::Kind::kObject), "is not an object");
    for (const std::string& key : object.keys) {
      bool known = false;
      for (const std::string_view k : keys) known = known || k == key;
      require(known, cat("has an unknown key \"", key, "\""));
    }
  }
  const Json& get(std::string_view key, Json::Kind kind) const {
    const Json* value = object_.find(key);
    require(value != nullptr, cat("lacks \"", key, "\""));
    require(value->is(kind), cat("has a \"", key, "\" of the wrong type"));
    return *value;
  }
  const std::string& text(std::string_view key) const {
    return get(key, Json::Kind::kString).string;
  }
  int64_t count(std::string_view key) const {
    const int64_t value = get(key, Json::Kind::kInt).integer;
    require(value >= 0, cat("has a negative \"", key, "\""));
    return value;
  }
  uint32_t crc(std::string_view key) const {
    const auto value = parse_crc(text(key));
    require(value.has_value(), cat("has a malformed \"", key, "\""));
    return *value;
  }
  void require(bool good, const std::string& fault) const {
    if (!good) throw UserError(cat(where_, " ", fault));
  }

 private:
  const Json& object_;
  std::string where_;
};

StoredBox parse_stored_box(const Json& json, const Reader& in, size_t files) {
  in.require(json.is(Json::Kind::kString), "has a box that is not a string");
  const std::string_view text = json.string;
  const size_t a = text.find(' '), b = text.rfind(' ');
  StoredBox stored;
  std::optional<Box> box;
  std::optional<uint32_t> crc;
  bool good = a != std::string_view::npos && a < b;
  if (good) {
    const auto r = std::from_chars(text.data(), text.data() + a, stored.file);
    box = parse_box(text.substr(a + 1, b - a - 1));
    crc = parse_crc(text.substr(b + 1));
    good = r.ec == std::errc{} && r.ptr == text.data() + a && stored.file < files && box && crc;
  }
  in.require(good, cat("has a malformed box \"", text, "\""));
  stored.box = std::move(*box);
  stored.crc = *crc;
  return stored;
}

StoredState parse_state(const Json& json, const std::string& path, size_t files, bool whole) {
  const Json* name = json.find("name");
  const std::string where = cat(
      path, ": state ", name && name->is(Json::Kind::kString) ? cat("\"", name->string, "\"") : "");
  const Reader in(json, where, {"name", "dtype", "shape", "boxes"});
  StoredState state;
  state.name = in.text("name");
  const auto dtype = dtype_named(in.text("dtype"));
  in.require(dtype.has_value(), cat("has an unknown dtype \"", in.text("dtype"), "\""));
  state.dtype = *dtype;
  int64_t bytes = static_cast<int64_t>(size_of(state.dtype));
  for (const Json& d : in.get("shape", Json::Kind::kArray).items) {
    in.require(d.is(Json::Kind::kInt) && d.integer >= 0, "has a malformed shape");
    in.require(!__builtin_mul_overflow(bytes, d.integer, &bytes), "has a shape beyond 64 bits");
    state.global.push_back(d.integer);
  }
  std::vector<Box> boxes;
  for (const Json& b : in.get("boxes", Json::Kind::kArray).items) {
    state.boxes.push_back(parse_stored_box(b, in, files));
    boxes.push_back(state.boxes.back().box);
  }
  const std::string fault = whole ? coverage_fault(boxes, state.global) : "";
  in.require(fault.empty(), "is incomplete or damaged: " + fault);
  return state;
}

}  // namespace

std::string render_manifest(const Manifest& manifest) {
  std::string body = cat("\"format\": \"", kFormat, "\",\n\"version\": ", kVersion,
                         ",\n\"step\": ", manifest.step, ",\n\"metadata\": {");
  const char* separator = "\n  ";
  for (const auto& [key, value] : manifest.metadata) {
    body += separator + json_quote(key) + ": " + json_quote(value);
    separator = ",\n  ";
  }
  body += "\n},\n\"files\": [";
  separator = "\n  ";
  for (const StoredFile& file : manifest.files) {
    body += cat(separator, "{\"name\": ", json_quote(file.name), ", \"bytes\": ", file.bytes,
                ", \"header_crc32c\": \"", crc_text(file.header_crc), "\"}");
    separator = ",\n  ";
  }
  body += "\n],\n\"states\": [";
  separator = "\n  ";
  for (const StoredState& state : manifest.states) {
    body +=
        cat(separator, "{\"name\": ", json_quote(state.name), ", \"dtype\": \"",
            name_of(state.dtype), "\", \"shape\": [", join(state.global, ", "), "], \"boxes\": [");
    for (size_t i = 0; i < state.boxes.size(); ++i) {
      const StoredBox& box = state.boxes[i];
      body +=
          cat(i ? ", \"" : "\"", box.file, " ", to_string(box.box), " ", crc_text(box.crc), "\"");
    }
    body += "]}";
    separator = ",\n  ";
  }
  body += "\n]\n}\n";
  return cat(kOpening, crc_text(crc32c(0, body.data(), body.size())), kAfterCrc, body);
}

Manifest parse_manifest(std::string_view text, const std::string& path, bool whole) {
  const size_t head = kOpening.size() + 8 + kAfterCrc.size();
  const bool opening_good = text.size() > head && text.substr(0, kOpening.size()) == kOpening &&
                            text.substr(head - kAfterCrc.size(), kAfterCrc.size()) == kAfterCrc;
  const auto crc = opening_good ? parse_crc(text.substr(kOpening.size(), 8)) : std::nullopt;
  if (!crc || *crc != crc32c(0, text.data() + head, text.size() - head)) {
    throw UserError(cat(path, ": damaged, cut short or edited: its checksum does not match"));
  }
  const Json json = parse_json(text, path);
  const Reader in(json, path + ": the manifest",
                  {"crc32c", "format", "version", "step", "metadata", "files", "states"});
  in.require(in.text("format") == kFormat, cat("is not of format ", kFormat));
  in.require(in.count("version") == kVersion,
             cat("has version ", in.count("version"), "; this program reads version ", kVersion));
  Manifest manifest;
  manifest.step = in.count("step");
  const Json& metadata = in.get("metadata", Json::Kind::kObject);
  for (size_t i = 0; i < metadata.keys.size(); ++i) {
    in.require(metadata.items[i].is(Json::Kind::kString),
               cat("has metadata \"", metadata.keys[i], "\" that is no string"));
    manifest.metadata[metadata.keys[i]] = metadata.items[i].string;
  }
  for (const Json& f : in.get("files", Json::Kind::kArray).items) {
    const Reader file(f, path + ": a file entry", {"name", "bytes", "header_crc32c"});
    const std::string& name = file.text("name");
    file.require(!name.empty() && name[0] != '.' && name.find('/') == std::string::npos,
                 cat("has a bad name \"", name, "\""));
    manifest.files.push_back(
        {name, static_cast<uint64_t>(file.count("bytes")), file.crc("header_crc32c")});
  }
  std::unordered_set<std::string> names;
  for (const Json& s : in.get("states", Json::Kind::kArray).items) {
    manifest.states.push_back(parse_state(s, path, manifest.files.size(), whole));
    const std::string& name = manifest.states.back().name;
    in.require(names.insert(name).second || !whole, cat("has two states called \"", name, "\""));
  }
  return manifest;
}

std::string tensor_name(const std::string& state, const Box& box, const Shape& global) {
  return box == whole_box(global) ? state : state + "@" + to_string(box);
}

}  // namespace moetrain
