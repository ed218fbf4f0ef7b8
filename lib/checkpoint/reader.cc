// Reading checkpoints back in any layout.
#include "checkpoint/reader.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/crc32c.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNamed = 10;

/// The first ten complaints and how many more there are.
void throw_complaints(const std::string& where, std::vector<std::string> complaints) {
  if (complaints.empty()) return;
  std::vector<Diagnostic> list;
  for (size_t i = 0; i < std::min(complaints.size(), kMaxNamed); ++i) {
    list.push_back({where, std::move(complaints[i])});
  }
  if (complaints.size() > kMaxNamed) {
    list.push_back({where, cat("and ", complaints.size() - kMaxNamed, " more like these (",
                               complaints.size(), " in all)")});
  }
  throw UserError(std::move(list));
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder, bool check_data)
    : folder_(folder), check_data_(check_data) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw UserError(cat(folder, ": no such checkpoint folder"));
  const std::string path = folder + "/manifest.json";
  if (!fs::exists(path, ignored)) {
    throw UserError(cat(folder, ": no complete checkpoint here (manifest.json is missing)"));
  }
  manifest_ = parse_manifest(read_file(path), path);
  std::vector<std::string> complaints;
  for (const StoredFile& file : manifest_.files) {
    const std::string name = folder + "/" + file.name;
    const uint64_t bytes = fs::file_size(name, ignored);
    if (ignored) {
      complaints.push_back(
          cat("file ", file.name, " is missing or unreadable: ", ignored.message()));
    } else if (bytes != file.bytes) {
      complaints.push_back(
          cat("file ", file.name, " has ", bytes, " bytes, the manifest says ", file.bytes));
    }
  }
  throw_complaints(folder, std::move(complaints));
  files_.resize(manifest_.files.size());
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    index_[manifest_.states[i].name] = i;
    checked_.emplace_back(manifest_.states[i].boxes.size(), false);
  }
}

const StoredState* CheckpointReader::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &manifest_.states[it->second];
}

const std::string& CheckpointReader::metadata(const std::string& key) const {
  const auto it = manifest_.metadata.find(key);
  if (it == manifest_.metadata.end()) {
    throw UserError(cat(folder_, ": the checkpoint does not record \"", key, "\""));
  }
  return it->second;
}

int64_t CheckpointReader::metadata_int(const std::string& key) const {
  const std::string& text = metadata(key);
  int64_t value = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size()) {
    throw UserError(cat(folder_, ": recorded \"", key, "\" is no whole number: \"", text, "\""));
  }
  return value;
}

double CheckpointReader::metadata_number(const std::string& key) const {
  const std::string& text = metadata(key);
  double value = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size()) {
    throw UserError(cat(folder_, ": recorded \"", key, "\" is no number: \"", text, "\""));
  }
  return value;
}

void CheckpointReader::check(const std::vector<StateSpec>& expected, bool same_dtype) const {
  std::vector<std::string> complaints;
  std::unordered_map<std::string, bool> known;
  for (const StateSpec& spec : expected) {
    known[spec.name] = true;
    const StoredState* state = find(spec.name);
    if (state == nullptr) {
      complaints.push_back(cat("missing tensor \"", spec.name, "\" ", to_string(spec.global)));
      continue;
    }
    if (state->global != spec.global) {
      complaints.push_back(cat("tensor \"", spec.name, "\" has shape ", to_string(state->global),
                               ", this run needs ", to_string(spec.global)));
    }
    if (state->dtype != spec.dtype &&
        (same_dtype || !is_float(state->dtype) || !is_float(spec.dtype))) {
      complaints.push_back(cat("tensor \"", spec.name, "\" is ", name_of(state->dtype),
                               ", this run needs ", name_of(spec.dtype)));
    }
  }
  for (const StoredState& state : manifest_.states) {
    if (!known.contains(state.name)) {
      complaints.push_back(cat("extra tensor \"", state.name, "\" ", to_string(state.global),
                               " that this run does not know"));
    }
  }
  throw_complaints(folder_, std::move(complaints));
}

const SafetensorsFile& CheckpointReader::file(size_t index) const {
  if (!files_[index]) {
    const StoredFile& stored = manifest_.files[index];
    auto opened = std::make_unique<SafetensorsFile>(folder_ + "/" + stored.name);
    const std::string_view header = opened->header_bytes();
    if (crc32c(0, header.data(), header.size()) != stored.header_crc) {
      throw UserError(cat(opened->path(), ": damaged: its header does not match the manifest"));
    }
    files_[index] = std::move(opened);
  }
  return *files_[index];
}

const FileTensor& CheckpointReader::tensor_of(const StoredState& state,
                                              const StoredBox& stored) const {
  const SafetensorsFile& in = file(stored.file);
  const FileTensor& tensor = in.at(tensor_name(state.name, stored.box, state.global));
  if (tensor.type != file_type_of(state.dtype) || tensor.shape != stored.box.extent) {
    throw UserError(cat(in.path(), ": tensor \"", tensor.name, "\" is ", name_of(tensor.type), " ",
                        to_string(tensor.shape), ", the manifest says ", name_of(state.dtype), " ",
                        to_string(stored.box.extent)));
  }
  return tensor;
}

void CheckpointReader::read(const std::string& name, const Box& want, DType as, void* out) const {
  const StoredState* state = find(name);
  if (state == nullptr) throw UserError(cat(folder_, ": missing tensor \"", name, "\""));
  MT_CHECK(inside(want, state->global), name, " ", to_string(want), " of ",
           to_string(state->global));
  const FileType type = file_type_of(state->dtype);
  if (!can_convert(type, as)) {
    throw UserError(cat(folder_, ": tensor \"", name, "\" is ", name_of(state->dtype),
                        ", which cannot be read as ", name_of(as)));
  }
  std::vector<bool>& checked = checked_[index_.at(name)];
  for (size_t i = 0; i < state->boxes.size(); ++i) {
    const StoredBox& stored = state->boxes[i];
    const auto part = intersect(want, stored.box);
    if (!part) continue;
    const FileTensor& tensor = tensor_of(*state, stored);
    const char* data = file(stored.file).data(tensor);
    if (check_data_ && !checked[i]) {
      if (crc32c(0, data, tensor.end - tensor.begin) != stored.crc) {
        throw UserError(cat(file(stored.file).path(), ": tensor \"", tensor.name,
                            "\" is damaged: its checksum does not match"));
      }
      checked[i] = true;
    }
    for_each_run(*part, stored.box, want, [&](int64_t from, int64_t to, int64_t count) {
      convert_elements(type, data + from * static_cast<int64_t>(size_of(type)), as,
                       static_cast<char*>(out) + to * static_cast<int64_t>(size_of(as)), count);
    });
  }
}

void CheckpointReader::verify(size_t part, size_t parts) const {
  std::vector<std::string> complaints;
  std::vector<size_t> boxes(files_.size(), 0);
  const auto mine = [&](size_t f) { return f % parts == part; };
  std::vector<bool> readable(files_.size(), true);
  for (size_t f = 0; f < files_.size(); ++f) {
    if (!mine(f)) continue;
    try {
      file(f);
    } catch (const UserError& e) {
      readable[f] = false;
      complaints.push_back(e.what());
    }
  }
  for (const StoredState& state : manifest_.states) {
    for (const StoredBox& stored : state.boxes) {
      if (!mine(stored.file) || !readable[stored.file]) continue;
      ++boxes[stored.file];
      try {
        const FileTensor& tensor = tensor_of(state, stored);
        if (crc32c(0, file(stored.file).data(tensor), tensor.end - tensor.begin) != stored.crc) {
          complaints.push_back(cat("file ", manifest_.files[stored.file].name, ": tensor \"",
                                   tensor.name, "\" is damaged: its checksum does not match"));
        }
      } catch (const UserError& e) {
        complaints.push_back(e.what());
      }
    }
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    if (mine(f) && readable[f] && file(f).tensors().size() != boxes[f]) {
      complaints.push_back(cat("file ", manifest_.files[f].name, " holds ",
                               file(f).tensors().size(), " tensors, the manifest says ", boxes[f]));
    }
  }
  throw_complaints(folder_, std::move(complaints));
}

std::string CheckpointReader::describe() const {
  uint64_t bytes = 0;
  for (const StoredFile& f : manifest_.files) bytes += f.bytes;
  std::string text =
      cat(folder_, "\n  step ", manifest_.step, ", ", manifest_.states.size(), " tensors in ",
          manifest_.files.size(), " files, ", human_bytes(static_cast<double>(bytes)), "\n");
  for (const auto& [key, value] : manifest_.metadata) {
    const size_t line = value.find('\n');
    text +=
        cat("  ", key, ": ",
            line == std::string::npos ? value : cat("(", value.size(), " bytes of text)"), "\n");
  }
  for (const StoredFile& f : manifest_.files) {
    text += cat("  file ", f.name, "  ", human_bytes(static_cast<double>(f.bytes)), "\n");
  }
  for (const StoredState& s : manifest_.states) {
    text += cat("  ", s.name, "  ", name_of(s.dtype), " ", to_string(s.global), "  in ",
                s.boxes.size(), s.boxes.size() == 1 ? " box\n" : " boxes\n");
  }
  return text;
}

void verify_checkpoint(const std::string& folder) { CheckpointReader(folder).verify(); }

}  // namespace moetrain
