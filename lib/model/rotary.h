// Rotary frequencies, YaRN and the softmax scale (tests/data/golden/README.md 3.4 and 3.5; arXiv:2309.00071).
#pragma once

#include "config/model.h"
#include "ops/attention.h"

namespace moetrain {

/// Frequencies and cos/sin amplitude of the model's rotary dims.
ops::RopeTable rope_table(const ModelConfig& model);
/// What scores are multiplied by: (nope + rope)^-1/2, times YaRN's squared correction when configured.
double softmax_scale(const ModelConfig& model);

}  // namespace moetrain
