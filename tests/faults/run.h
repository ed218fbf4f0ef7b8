// Runs the tiny model T0 on threads under a layout, with chosen masks, samples and initial weights.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/session.h"

namespace moetrain {

/// What differs from the plain run: 1 rank, 1 step, sequence 64, global batch 8, no MTP, no
/// clipping, no decay, no balance loss, bias update speed 0, fp32.
struct Trial {
  int ranks = 1;
  int steps = 1;
  std::vector<std::string> settings;  ///< --set texts
  double rate = 0.001;
  double mtp_lambda = 0.3;
  double bias_speed = 0;
  std::vector<int64_t> valid;  ///< valid tokens of sample i (mod size); empty: all
  bool one_sample = false;     ///< every sample is sample 0
  /// Alters initial values of a box of a parameter.
  std::function<void(const std::string& name, const Box& box, float* values)> alter;
};

struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> states;  ///< whole, by name: parameters, m:, v:
  std::map<std::string, std::vector<float>> start;   ///< parameters before the first step
  std::vector<std::string> differing;  ///< states of which two ranks hold different copies

  /// Gradient of step 1 (of a run of one step without clipping), from the first moment.
  std::vector<float> gradient(const std::string& parameter) const;
};

Outcome run(const Trial& trial);

/// Largest difference over the largest value of `b`.
double distance(const std::vector<float>& a, const std::vector<float>& b);

/// The model alone.
ModelConfig t0_model(const std::vector<std::string>& settings = {});

}  // namespace moetrain
