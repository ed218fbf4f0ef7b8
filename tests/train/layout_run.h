// Runs the tiny model for some steps under a parallel layout, ranks as threads, and collects what must not change.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/session.h"

namespace moetrain {

/// T0 of the fault cases: one dense and one MoE layer, 8 experts in 4 groups, vocabulary 512; plus an MTP
/// layer when `mtp`. fp32, global batch 8, sequence 32.
std::vector<std::string> tiny_settings(bool mtp);

struct LayoutRun {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> weights;  ///< whole states by name: parameters, m:, v:
  int64_t collectives = 0;                            ///< in rank 0's plan
};

/// `settings` are --set texts over tiny_settings. Throws what the ranks throw.
/// Step numbers (from 1) in `poisoned` get a loss that is not a number.
LayoutRun run_layout(int ranks, int steps, const std::vector<std::string>& settings, bool mtp = true,
                     const std::vector<int>& poisoned = {});

/// Deterministic pseudo-text: samples of a small Markov chain over the vocabulary.
void fill_synthetic(int64_t first, int64_t count, int64_t sequence, int64_t depths, int64_t vocab,
                    Batch& batch);

}  // namespace moetrain
