// Writing dumps.
#include "train/dump.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace moetrain {

namespace {

bool is_dumped(const std::string& name) {
  for (const char* start : {"hidden.", "logits", "mtp.", "route.", "grad."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

void dump_step(const Session& session, int rank, int64_t step, const std::string& dir) {
  // Other pipeline stages hold some of the outputs, so all ranks take part in fetching them.
  std::map<std::string, std::vector<float>> fetched;
  if (session.config().parallel.pipeline > 1) {
    for (const auto& [name, type] : session.outputs()) {
      if (!is_dumped(name)) continue;
      std::vector<float> values = session.output(name);
      if (rank == 0) fetched[name] = std::move(values);
    }
  }
  if (rank != 0) return;
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter& p : session.parameters()) parameters["grad." + p.name] = &p;

  std::vector<FileTensorSpec> specs;
  struct Part {
    std::string output;
    int64_t begin = 0, count = 0;
  };
  std::vector<Part> parts;
  for (const auto& [output, global] : session.outputs()) {
    if (!is_dumped(output)) continue;
    const bool whole_number = global.dtype == DType::kI32 || global.dtype == DType::kI64;
    const FileType type = whole_number ? FileType::kI32 : FileType::kF32;
    const auto parameter = parameters.find(output);
    if (parameter == parameters.end()) {
      specs.push_back({output, type, global.shape});
      parts.push_back({output, 0, numel(global.shape)});
      continue;
    }
    const Parameter& p = *parameter->second;
    for (const PublishedSlice& t : p.published) {
      const int64_t n = numel(t.shape), begin = p.shape.size() == 3 ? t.slice.begin[0] * n : 0;
      specs.push_back({"grad." + t.name, type, t.shape});
      parts.push_back({output, begin, n});
    }
  }
  std::filesystem::create_directories(dir);
  SafetensorsWriter writer(
      (std::filesystem::path(dir) / (step_folder(step) + ".safetensors")).string(), specs,
      {{"step", std::to_string(step)}});
  std::string loaded;
  std::vector<float> values;
  for (size_t i : writer.order()) {
    if (parts[i].output != loaded) {
      const auto at = fetched.find(parts[i].output);
      values = at == fetched.end() ? session.output(parts[i].output) : at->second;
      loaded = parts[i].output;
    }
    const float* from = values.data() + parts[i].begin;
    if (specs[i].type == FileType::kI32) {
      const std::vector<int32_t> whole(from, from + parts[i].count);
      writer.append(whole.data(), whole.size() * sizeof(int32_t));
    } else {
      writer.append(from, static_cast<uint64_t>(parts[i].count) * sizeof(float));
    }
  }
  writer.finish();
}

}  // namespace moetrain
