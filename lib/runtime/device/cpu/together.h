// Independent kernels at once: each led by one worker, helped by those who have nothing left to lead.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

/// One kernel of several that run together.
struct TogetherPart {
  const OpDef* op = nullptr;
  const Kernel* kernel = nullptr;  ///< null: the op's reference loops
  const Attrs* attrs = nullptr;
  size_t first_in = 0, inputs = 0, first_out = 0, outputs = 0;
  size_t workspace = 0;  ///< bytes
  double bytes = 0;      ///< that it moves, about
};

/// The parts of a fused node, heaviest first. `attrs` (with attribute `body`) must outlive it.
class Together {
 public:
  Together(const Attrs& attrs, std::span<const Type> inputs, std::span<const Type> outputs, int threads);

  /// Parts that can be under way at once: each has a region of the workspace and a team.
  size_t leaders() const { return std::min<size_t>(threads_, parts_.size()); }
  size_t workspace_bytes() const { return region_ * leaders(); }
  std::string name() const;
  /// Workers of a team whose leader has `threads` to help it: itself and everybody, under a number of his own.
  static int team_size(int threads) { return threads == 1 ? 1 : threads + 1; }
  /// Runs all parts. `teams`: at least leaders() borrowed pools of team_size(pool.size()).
  void run(std::span<const Tensor> in, std::span<Tensor> out, std::byte* workspace, ThreadPool& pool,
           std::span<const std::unique_ptr<ThreadPool>> teams) const;

 private:
  void run_part(const TogetherPart& part, std::span<const Tensor> in, std::span<Tensor> out,
                std::byte* workspace, ThreadPool& pool) const;

  std::vector<TogetherPart> parts_;
  size_t region_ = 0;  ///< workspace of one part
  int threads_ = 1;
};

}  // namespace moetrain::cpu
