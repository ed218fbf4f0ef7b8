// Section `parallel`: how ranks share the work. Strategy knobs first, then sharding of single
// operators.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/value.h"

namespace moetrain {

/// How token rows reach their experts.
enum class Dispatch : int { kAuto, kAllToAll, kAllToAllOnce, kAllGather, kDedup };
inline const std::vector<std::string> kDispatchNames = {"auto", "alltoall", "alltoall_once",
                                                        "allgather", "dedup"};

/// The order of micro-batches in a pipeline.
enum class PipelineSchedule : int { k1F1B, kFused1F1B, kDualPipeV };
inline const std::vector<std::string> kPipelineScheduleNames = {"1f1b", "fused_1f1b", "dualpipev"};

/// Who chooses layouts that no strategy and no `shard` row fixes.
enum class LayoutChoice : int { kManual, kAuto };
inline const std::vector<std::string> kLayoutChoiceNames = {"manual", "auto"};

/// A layout as the user writes it: axes per dim, major first; plus axes over which the value is
/// partial.
struct LayoutSpec {
  std::vector<std::vector<std::string>> dims;
  std::vector<std::string> partial;
};

/// One row of `parallel.shard`. Exactly one of the three forms:
///   {op: PATTERN, LETTER: AXES, ...}      axes for factors of the op's rule
///   {op: PATTERN, in: [...], out: [...]}  layouts of its inputs and outputs
///   {param: PATTERN, layout: [...]}       the layout a parameter is stored in
struct ShardRow {
  enum Form { kFactors, kLayouts, kParam };
  Form form = kFactors;
  std::string pattern;  ///< of op or parameter names; `*` stands for any run of characters
  std::vector<std::pair<char, std::vector<std::string>>> factors;
  std::vector<LayoutSpec> in, out;  ///< empty: not fixed
  LayoutSpec layout;
  std::string where;  ///< `file:line:column` or `--set ...`, for messages and `plan --explain`
};

/// World size = data x context x tensor x pipeline; `expert` re-uses data x context ranks.
struct ParallelConfig {
  int64_t pipeline = 1;
  int64_t tensor = 1;
  int64_t expert = 1;
  int64_t context = 1;
  Auto<int64_t> data;
  Auto<bool> sequence_parallel;
  Auto<bool> tp_extend_ep;
  int64_t zero = 1;
  Auto<int64_t> ranks_per_node;
  Dispatch dispatch = Dispatch::kAuto;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t virtual_stages = 1;
  Auto<std::vector<int64_t>> stage_layout;
  bool overlap = true;
  int64_t weight_gradient_store = int64_t{256} << 20;  ///< bytes
  NamedSizes mesh;
  std::vector<ShardRow> shard;
  LayoutChoice layouts = LayoutChoice::kManual;

  /// Ranks of one pipeline stage (after resolve).
  int64_t stage_ranks() const { return *data * context * tensor; }
  /// Replicas of one expert group among data x context ranks (after resolve).
  int64_t expert_data() const { return *data * context / expert; }
  /// Ranks that together hold all experts: expert, times tensor when experts stay whole.
  int64_t expert_group() const { return expert * (*tp_extend_ep ? tensor : 1); }
  /// Pieces the layers are cut into: every rank of a pipeline holds virtual_stages of them
  /// (DualPipeV: two).
  int64_t chunks_per_rank() const {
    return schedule == PipelineSchedule::kDualPipeV ? 2 : virtual_stages;
  }
};

}  // namespace moetrain
