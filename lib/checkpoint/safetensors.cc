// The safetensors format: u64 header size, JSON header, then the data of all tensors without gaps.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/json.h"

namespace moetrain {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxComplaints = 10;

/// Collects complaints about one file.
class Complaints {
 public:
  explicit Complaints(std::string path) : path_(std::move(path)) {}
  template <class... Args>
  void add(const Args&... args) {
    if (++count_ <= kMaxComplaints) list_.push_back({path_, cat(args...)});
  }
  void throw_if_any() {
    if (count_ == 0) return;
    if (count_ > kMaxComplaints) {
      list_.push_back({path_, cat("and ", count_ - kMaxComplaints, " more faults")});
    }
    throw UserError(std::move(list_));
  }

 private:
  std::string path_;
  std::vector<Diagnostic> list_;
  size_t count_ = 0;
};

/// Bytes of a shape, or nothing if that does not fit 63 bits.
std::optional<uint64_t> bytes_of(const Shape& shape, FileType type) {
  int64_t n = static_cast<int64_t>(size_of(type));
  for (const int64_t d : shape) {
    if (__builtin_mul_overflow(n, d, &n)) return std::nullopt;
  }
  return static_cast<uint64_t>(n);
}

bool read_shape(const Json& json, Shape* shape) {
  if (!json.is(Json::Kind::kArray)) return false;
  for (const Json& d : json.items) {
    if (!d.is(Json::Kind::kInt) || d.integer < 0) return false;
    shape->push_back(d.integer);
  }
  return true;
}

/// Reads one entry of the header; complains and returns nothing if it is wrong.
std::optional<FileTensor> read_entry(const std::string& name, const Json& entry, uint64_t data_size,
                                     Complaints* complaints) {
  const auto refuse = [&](const auto&... why) -> std::optional<FileTensor> {
    complaints->add("tensor \"", name, "\": ", why...);
    return std::nullopt;
  };
  if (!entry.is(Json::Kind::kObject)) return refuse("its header entry is not an object");
  for (const std::string& key : entry.keys) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return refuse("unknown key \"", key, "\" in its header entry");
    }
  }
  FileTensor tensor;
  tensor.name = name;
  const Json* dtype = entry.find("dtype");
  if (!dtype || !dtype->is(Json::Kind::kString)) return refuse("dtype is missing or not a string");
  const auto type = file_type_named(dtype->string);
  if (!type) return refuse("unknown dtype \"", dtype->string, "\"");
  tensor.type = *type;
  const Json* shape = entry.find("shape");
  if (!shape || !read_shape(*shape, &tensor.shape)) {
    return refuse("shape is missing or not a list of whole numbers >= 0");
  }
  const Json* offsets = entry.find("data_offsets");
  Shape pair;
  if (!offsets || !read_shape(*offsets, &pair) || pair.size() != 2) {
    return refuse("data_offsets is missing or not two whole numbers >= 0");
  }
  tensor.begin = static_cast<uint64_t>(pair[0]);
  tensor.end = static_cast<uint64_t>(pair[1]);
  if (tensor.begin > tensor.end) {
    return refuse("data_offsets ", to_string(pair), " run backwards");
  }
  if (tensor.end > data_size) {
    return refuse("data_offsets ", to_string(pair), " end beyond the file's ", data_size,
                  " data bytes (truncated?)");
  }
  const auto bytes = bytes_of(tensor.shape, tensor.type);
  if (!bytes) return refuse("shape ", to_string(tensor.shape), " overflows 64 bits");
  if (*bytes != tensor.end - tensor.begin) {
    return refuse("shape ", to_string(tensor.shape), " of ", name_of(tensor.type), " needs ",
                  *bytes, " bytes but data_offsets ", to_string(pair), " hold ",
                  tensor.end - tensor.begin);
  }
  return tensor;
}

}  // namespace

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  uint64_t size = 0;
  if (file.size() < 8) {
    throw UserError(cat(path, ": ", file.size(), " bytes are too few for a safetensors file"));
  }
  std::memcpy(&size, file.data(), 8);
  if (size > kMaxHeader || size > file.size() - 8) {
    throw UserError(cat(path, ": damaged safetensors header: it claims ", size,
                        " bytes, the file has ", file.size(), " (limit ", kMaxHeader, ")"));
  }
  const std::string_view text = file.substr(8, size);
  if (text.empty() || text.front() != '{') {
    throw UserError(cat(path, ": damaged safetensors header: it does not start with '{'"));
  }
  const Json json = parse_json(text, path + ": safetensors header");
  SafetensorsHeader header;
  header.data_begin = 8 + size;
  const uint64_t data_size = file.size() - header.data_begin;
  Complaints complaints(path);
  for (size_t i = 0; i < json.keys.size(); ++i) {
    if (json.keys[i] != "__metadata__") {
      auto tensor = read_entry(json.keys[i], json.items[i], data_size, &complaints);
      if (tensor) header.tensors.push_back(std::move(*tensor));
      continue;
    }
    if (!json.items[i].is(Json::Kind::kObject)) complaints.add("__metadata__ is not an object");
    for (size_t k = 0; k < json.items[i].keys.size(); ++k) {
      const Json& value = json.items[i].items[k];
      if (!value.is(Json::Kind::kString)) {
        complaints.add("__metadata__ \"", json.items[i].keys[k], "\" is not a string");
      }
      header.metadata.emplace(json.items[i].keys[k], value.string);
    }
  }
  complaints.throw_if_any();

  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const FileTensor& a, const FileTensor& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  uint64_t expected = 0;
  for (const FileTensor& tensor : header.tensors) {
    if (tensor.begin != expected) {
      complaints.add("tensor \"", tensor.name, "\": its data starts at ", tensor.begin,
                     tensor.begin < expected ? ", inside the tensor before it (which ends at "
                                             : ", leaving a hole (the tensor before it ends at ",
                     expected, ")");
    }
    expected = std::max(expected, tensor.end);
  }
  if (expected != data_size) {
    complaints.add(data_size - expected, " bytes after the last tensor belong to nothing");
  }
  complaints.throw_if_any();
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path), header_(parse_safetensors(file_.text(), path)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.tensors[it->second];
}

const FileTensor& SafetensorsFile::at(std::string_view name) const {
  if (const FileTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const FileTensor& tensor : header_.tensors) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  throw UserError(cat(path(), ": no tensor \"", name, "\" in this file",
                      near.empty() ? "" : cat("; the nearest is \"", near, "\"")));
}

const char* SafetensorsFile::data(const FileTensor& tensor) const {
  return file_.text().data() + header_.data_begin + tensor.begin;
}

void SafetensorsFile::read(const FileTensor& tensor, DType as, void* out) const {
  if (!can_convert(tensor.type, as)) {
    throw UserError(cat(path(), ": tensor \"", tensor.name, "\" is ", name_of(tensor.type),
                        ", which cannot be read as ", name_of(as)));
  }
  convert_elements(tensor.type, data(tensor), as, out, numel(tensor.shape));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<FileTensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : out_(path), order_(tensors.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    return size_of(tensors[a].type) > size_of(tensors[b].type);
  });
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text += json_quote(key) + ":" + json_quote(value);
    }
    text += '}';
  }
  uint64_t offset = 0;
  std::unordered_map<std::string_view, size_t> seen;
  for (const size_t i : order_) {
    const FileTensorSpec& t = tensors[i];
    MT_CHECK(seen.emplace(t.name, i).second, path, ": tensor ", t.name, " given twice");
    const auto bytes = bytes_of(t.shape, t.type);
    MT_CHECK(bytes && t.name != "__metadata__", path, ": tensor ", t.name, " ", to_string(t.shape));
    if (text.back() != '{') text += ',';
    text += cat(json_quote(t.name), ":{\"dtype\":\"", name_of(t.type), "\",\"shape\":[",
                join(t.shape, ","), "],\"data_offsets\":[", offset, ",", offset + *bytes, "]}");
    offset += *bytes;
    bytes_.push_back(*bytes);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader) {
    throw UserError(cat(path, ": too many tensors for one safetensors header (", text.size(),
                        " bytes, limit ", kMaxHeader, ")"));
  }
  const uint64_t size = text.size();
  text.insert(0, reinterpret_cast<const char*>(&size), 8);
  header_crc_ = crc32c(0, text.data(), text.size());
  out_.write(text);
}

uint32_t SafetensorsWriter::append(const void* data, uint64_t bytes) {
  MT_CHECK(next_ < bytes_.size() && bytes == bytes_[next_], out_.path(), ": tensor ", next_, " of ",
           bytes_.size(), " got ", bytes, " bytes");
  ++next_;
  out_.write(data, bytes);
  return crc32c(0, data, bytes);
}

void SafetensorsWriter::finish() {
  MT_CHECK(next_ == bytes_.size(), out_.path(), ": ", next_, " of ", bytes_.size(),
           " tensors written");
  out_.finish();
}

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<FileTensorSpec> specs;
  for (const NamedTensor& t : tensors) {
    specs.push_back({t.name, file_type_of(t.tensor.dtype), t.tensor.shape});
  }
  SafetensorsWriter writer(path, specs, metadata);
  for (const size_t i : writer.order()) {
    writer.append(tensors[i].tensor.data, static_cast<uint64_t>(tensors[i].tensor.bytes()));
  }
  writer.finish();
}

}  // namespace moetrain
