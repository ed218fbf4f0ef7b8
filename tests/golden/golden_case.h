// A golden case on disk: configuration, batches and expected tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "data/sampler.h"

namespace moetrain::golden {

/// case.json.
struct CaseSettings {
  std::string name;
  int64_t steps = 1, batch = 1, sequence = 1;
  double mtp_lambda = 0, balance_alpha = 0, bias_speed = 0;
  bool adamw = false;
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0, clip = 0;
};

class Case {
 public:
  /// Opens the folder; throws UserError naming what is missing or malformed.
  explicit Case(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CaseSettings& settings() const { return settings_; }
  const SafetensorsFile& weights() const { return *weights_; }
  const SafetensorsFile& expected() const { return *expected_; }
  bool has(const std::string& name) const { return expected_->find(name) != nullptr; }
  /// Expected values as float; integers converted.
  std::vector<float> values(const std::string& name) const;

  /// `--set` style settings that make a Config of this case.
  std::vector<std::string> config_sets() const;
  /// Samples [first, first + count) where sample number = step * batch + row.
  void fill(int64_t first, int64_t count, int64_t depths, Batch& batch) const;

 private:
  std::string folder_;
  CaseSettings settings_;
  std::unique_ptr<SafetensorsFile> weights_, expected_;
  std::vector<int32_t> ids_, labels_;
};

}  // namespace moetrain::golden
