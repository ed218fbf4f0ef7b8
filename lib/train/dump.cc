// Dumps of one step.
#include "train/dump.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace moetrain {

namespace {

bool wanted(const std::string& name) {
  for (const char* prefix : {"hidden.", "logits", "route.", "mtp.", "grad."}) {
    if (name.starts_with(prefix)) return name != "grad_norm";
  }
  return false;
}

}  // namespace

void dump_step(Session& session, int rank, int64_t step, const std::string& folder) {
  if (rank != 0) return;
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter& p : session.parameters()) parameters["grad." + p.name] = &p;
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  values.reserve(session.plan().outputs.size());
  for (const Port& port : session.plan().outputs) {
    if (!wanted(port.name)) continue;
    values.push_back(session.output(port.name));
    float* data = values.back().data();
    const auto parameter = parameters.find(port.name);
    if (parameter == parameters.end()) {
      tensors.push_back({port.name, {data, DType::kF32, port.global.shape}});
      continue;
    }
    for (const PublishedSlice& t : parameter->second->published) {
      tensors.push_back({"grad." + t.name, {data, DType::kF32, t.shape}});
      data += numel(t.shape);
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError(cat("debug.dump.dir: cannot make ", folder, ": ", error.message()));
  save_safetensors(cat(folder, "/step_", step, ".safetensors"), tensors);
}

}  // namespace moetrain
