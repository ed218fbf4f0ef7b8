// Writing a Hugging Face folder from a checkpoint, tensor by tensor.
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/file.h"
#include "checkpoint/hf.h"
#include "checkpoint/json.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

uint64_t bytes_of(const PublishedTensor& row) {
  return static_cast<uint64_t>(numel(row.shape)) * size_of(row.dtype);
}

/// Rows grouped into files: in table order, a new file when the next row would not fit.
std::vector<std::vector<const PublishedTensor*>> group(const std::vector<PublishedTensor>& table,
                                                       uint64_t max_bytes) {
  std::vector<std::vector<const PublishedTensor*>> files;
  uint64_t used = 0;
  for (const PublishedTensor& row : table) {
    if (files.empty() || (used > 0 && used + bytes_of(row) > max_bytes)) {
      files.emplace_back();
      used = 0;
    }
    files.back().push_back(&row);
    used += bytes_of(row);
  }
  return files;
}

/// All rows must be readable from the checkpoint before anything is written.
void check_rows(const CheckpointReader& checkpoint, const std::vector<PublishedTensor>& table) {
  std::vector<Diagnostic> faults;
  std::set<std::string> names;
  for (const PublishedTensor& row : table) {
    MT_CHECK(names.insert(row.published).second, row.published, " is in the name table twice");
    MT_CHECK(volume(row.slice) == numel(row.shape), row.published, ": slice ", to_string(row.slice),
             " against shape ", to_string(row.shape));
    const StoredState* state = checkpoint.find(row.state);
    if (state == nullptr) {
      faults.push_back({checkpoint.folder(), cat("missing tensor \"", row.state,
                                                 "\" (published as \"", row.published, "\")")});
    } else if (!inside(row.slice, state->global)) {
      faults.push_back(
          {checkpoint.folder(),
           cat("tensor \"", row.state, "\" has shape ", to_string(state->global),
               ", which does not hold ", to_string(row.slice), " for \"", row.published, "\"")});
    } else if (!can_convert(file_type_of(state->dtype), row.dtype)) {
      faults.push_back(
          {checkpoint.folder(), cat("tensor \"", row.state, "\" is ", name_of(state->dtype),
                                    ", not exportable as ", name_of(row.dtype))});
    }
  }
  constexpr size_t kMaxNamed = 10;
  if (faults.size() > kMaxNamed) {
    const size_t all = faults.size();
    faults.resize(kMaxNamed);
    faults.push_back(
        {checkpoint.folder(), cat("and ", all - kMaxNamed, " more (", all, " in all)")});
  }
  if (!faults.empty()) throw UserError(std::move(faults));
}

void write_file(const CheckpointReader& checkpoint, const std::vector<const PublishedTensor*>& rows,
                const std::string& path, const std::function<void()>& after_each) {
  std::vector<FileTensorSpec> specs;
  for (const PublishedTensor* row : rows) {
    specs.push_back({row->published, file_type_of(row->dtype), row->shape});
  }
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  std::vector<char> buffer;
  for (const size_t i : writer.order()) {
    const PublishedTensor& row = *rows[i];
    buffer.resize(bytes_of(row));
    checkpoint.read(row.state, row.slice, row.dtype, buffer.data());
    writer.append(buffer.data(), buffer.size());
    after_each();
  }
  writer.finish();
}

}  // namespace

void export_hf(const CheckpointReader& checkpoint, const std::vector<PublishedTensor>& table,
               const std::map<std::string, std::string>& extra_files, const std::string& folder,
               const HfExportOptions& options) {
  MT_CHECK(extra_files.contains("config.json"), "an export needs config.json");
  check_rows(checkpoint, table);
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder))) {
    throw UserError(cat(folder, ": exists and is not an empty folder; choose a new one"));
  }
  const std::string draft = fs::path(folder + "/").parent_path().string() + ".tmp";
  std::error_code error;
  fs::remove_all(draft, error);
  if (!fs::create_directories(draft, error)) {
    throw UserError(cat(draft, ": cannot make the folder: ", error.message()));
  }
  try {
    uint64_t total = 0;
    for (const PublishedTensor& row : table) total += bytes_of(row);
    if (const uint64_t free = free_bytes(draft); free < total) {
      throw UserError(cat(folder, ": the export needs ", human_bytes(static_cast<double>(total)),
                          " but only ", human_bytes(static_cast<double>(free)), " are free"));
    }
    const auto files = group(table, options.max_file_bytes);
    std::map<std::string, std::string> weight_map;
    size_t done = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      char name[64];
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
      write_file(checkpoint, files[i], draft + "/" + name, [&] {
        if (options.progress) options.progress(++done, table.size());
      });
      for (const PublishedTensor* row : files[i]) weight_map[row->published] = name;
    }
    std::string index =
        cat("{\n  \"metadata\": {\"total_size\": ", total, "},\n  \"weight_map\": {");
    const char* separator = "\n    ";
    for (const auto& [published, file] : weight_map) {
      index += separator + json_quote(published) + ": " + json_quote(file);
      separator = ",\n    ";
    }
    index += "\n  }\n}\n";
    write_file_atomically(draft + "/model.safetensors.index.json", index);
    for (const auto& [name, contents] : extra_files) {
      write_file_atomically(draft + "/" + name, contents);
    }
    fs::rename(draft, folder);
  } catch (...) {
    fs::remove_all(draft, error);
    throw;
  }
}

}  // namespace moetrain
