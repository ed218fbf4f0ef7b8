// Reading a golden case.
#include "golden_case.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace moetrain::golden {

namespace {

std::string number(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", v);
  return text;
}

std::vector<int32_t> integers(const SafetensorsFile& file, const std::string& name) {
  const FileTensor& tensor = file.at(name);
  std::vector<int32_t> out(numel(tensor.shape));
  file.read(tensor, DType::kI32, out.data());
  return out;
}

}  // namespace

Case::Case(const std::string& folder) : folder_(folder) {
  std::ifstream in(folder + "/case.json");
  if (!in) throw UserError(folder + "/case.json: cannot be read; is this a golden case folder?");
  try {
    const auto j = nlohmann::json::parse(in);
    CaseSettings& s = settings_;
    s.name =
        j.value("name", std::filesystem::path(folder + "/.").parent_path().filename().string());
    s.steps = j.at("num_steps");
    s.batch = j.at("batch");
    s.sequence = j.at("seq");
    const auto given = [&](const char* key) { return j.contains(key) && !j[key].is_null(); };
    const auto or_zero = [&](const char* key) { return given(key) ? j[key].get<double>() : 0.0; };
    s.mtp_lambda = or_zero("mtp_lambda");
    s.balance_alpha = or_zero("balance_alpha");
    s.bias_speed = or_zero("bias_update_speed");
    if (given("adamw")) {
      const auto& a = j.at("adamw");
      s.adamw = true;
      s.lr = a.at("lr");
      s.beta1 = a.at("beta1");
      s.beta2 = a.at("beta2");
      s.eps = a.at("eps");
      s.decay = a.at("weight_decay");
      s.clip = a.at("clip_norm");
    }
  } catch (const nlohmann::json::exception& e) {
    throw UserError(cat(folder, "/case.json: ", e.what()));
  }
  weights_ = std::make_unique<SafetensorsFile>(folder + "/model.safetensors");
  expected_ = std::make_unique<SafetensorsFile>(folder + "/expected.safetensors");
  ids_ = integers(*expected_, "input_ids");
  labels_ = integers(*expected_, "labels");
}

std::vector<float> Case::values(const std::string& name) const {
  const FileTensor& tensor = expected_->at(name);
  std::vector<float> out(numel(tensor.shape));
  if (tensor.type == FileType::kI32) {
    const std::vector<int32_t> raw = integers(*expected_, name);
    out.assign(raw.begin(), raw.end());
  } else {
    expected_->read(tensor, DType::kF32, out.data());
  }
  return out;
}

std::vector<std::string> Case::config_sets() const {
  const CaseSettings& s = settings_;
  std::vector<std::string> sets = {
      cat("data.sequence_length=", s.sequence),
      cat("train.global_batch_size=", s.batch),
      "train.micro_batch_size=1",
      "train.steps=" + std::to_string(s.steps),
      "train.mtp_lambda=" + number(s.mtp_lambda),
      "router.balance_alpha=" + number(s.balance_alpha),
      "router.bias_update_speed=" + number(s.bias_speed),
      "compute.precision=fp32",
  };
  if (s.adamw) {
    sets.push_back("optimizer.learning_rate=" + number(s.lr));
    sets.push_back("optimizer.betas=[" + number(s.beta1) + ", " + number(s.beta2) + "]");
    sets.push_back("optimizer.eps=" + number(s.eps));
    sets.push_back("optimizer.weight_decay=" + number(s.decay));
    sets.push_back("optimizer.clip_norm=" + number(s.clip));
  }
  return sets;
}

void Case::fill(int64_t first, int64_t count, int64_t depths, Batch& batch) const {
  const int64_t s = settings_.sequence;
  batch.resize(count, s, depths);
  for (int64_t b = 0; b < count; ++b) {
    const int32_t* ids = ids_.data() + (first + b) * s;
    const int32_t* labels = labels_.data() + (first + b) * s;
    for (int64_t i = 0; i < s; ++i) {
      batch.pos[b * s + i] = static_cast<int32_t>(i);
      batch.doc_start[b * s + i] = 0;
      for (int64_t k = 0; k <= depths; ++k) {
        const bool valid = i < s - k;
        batch.tokens_at(k)[b * s + i] = valid ? ids[i + k] : 0;
        batch.labels_at(k)[b * s + i] = valid ? labels[i + k] : 0;
        batch.valid_at(k)[b * s + i] = valid ? 1.0f : 0.0f;
      }
    }
  }
}

}  // namespace moetrain::golden
