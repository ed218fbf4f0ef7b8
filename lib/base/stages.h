// Stages: how the chunks of a model, in depth order, lie on the ranks of a pipeline.
#pragma once

namespace moetrain {

/// A model is cut into chunks 0 .. chunks() - 1 in depth order. Every pipeline stage (the ranks of one
/// Mesh) holds `per_stage` of them: stage s holds chunks s, s + count, s + 2 count, ... or, when folded
/// (DualPipeV), chunks s and 2 count - 1 - s, so that the first and the last chunk meet on stage 0.
struct Stages {
  int count = 1;
  int per_stage = 1;
  bool folded = false;

  int chunks() const { return count * per_stage; }
  int stage_of(int chunk) const {
    return folded && chunk >= count ? 2 * count - 1 - chunk : chunk % count;
  }
  /// Position of `chunk` among those of its stage, in depth order.
  int local(int chunk) const { return chunk / count; }
  int chunk(int stage, int local) const {
    return folded && local == 1 ? 2 * count - 1 - stage : local * count + stage;
  }
};

}  // namespace moetrain
