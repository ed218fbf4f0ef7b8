// The loss of given weights on held-out data, under any layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/split.h"
#include "train/weights.h"

namespace moetrain {

struct EvaluateOptions {
  Split split = Split::kValidation;
  int64_t steps = 0;  ///< global batches; 0: train.validation_steps
};

struct EvaluateResult {
  std::vector<double> loss;     ///< mean per token and depth; depth 0 is the main loss
  std::vector<int64_t> tokens;  ///< that had a loss, per depth
  std::string weights;
  std::string text() const;
  std::string json() const;
};

/// Collective. Throws UserError / AgreedError.
EvaluateResult evaluate_weights(const WeightSource& weights, Fabric& fabric,
                                const EvaluateOptions& options);

}  // namespace moetrain
