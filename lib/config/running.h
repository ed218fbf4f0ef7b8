// Sections `run`, `data`, `compute`, `checkpoint`, `log` and `debug`: everything around the recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/value.h"

namespace moetrain {

struct RunConfig {
  std::string name = "moetrain";
  std::string output_dir = "runs/moetrain";
  int64_t seed = 1234;
  std::optional<double>
      time_limit;             ///< seconds after which the run saves and stops with exit code 75
  double hang_timeout = 600;  ///< seconds without progress after which the job is ended; 0: never
};

/// One `.bin/.idx` pair and its share of the blend.
struct DataSource {
  std::string prefix;
  double weight = 1;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;
  std::vector<double> split = {100, 0,
                               0};  ///< shares train, validation, test of `train`'s sequences
  int64_t sequence_length = 0;
  std::string tokenizer = "bytes";
  bool document_mask = false;
  bool eod_mask_loss = false;
  Auto<int64_t> seed;
};

enum class Backend : int { kCpu, kAscend };
inline const std::vector<std::string> kBackendNames = {"cpu", "ascend"};

enum class Precision : int { kBf16, kFp32 };
inline const std::vector<std::string> kPrecisionNames = {"bf16", "fp32"};

enum class Recompute : int { kNone, kSelective, kFull };
inline const std::vector<std::string> kRecomputeNames = {"none", "selective", "full"};

/// The fusion passes one by one (lib/compile/fuse).
struct FusionConfig {
  bool accumulate = true;
  bool projections = true;
  bool swiglu = true;
  bool gather = true;
  bool norm_residual = true;
  bool rope_split = true;
  bool adamw_copy = true;
  bool side_by_side = true;
};

struct ComputeConfig {
  Backend backend = Backend::kCpu;
  Precision precision = Precision::kBf16;
  Recompute recompute = Recompute::kNone;
  bool fusion = true;
  FusionConfig fusion_passes;
  bool pad_value_heads = false;
  bool packed_weights = true;
  Auto<int64_t> threads;
  std::optional<std::string> machine;
  std::optional<int64_t> memory_limit;  ///< bytes per rank; a plan that needs more is refused
  double ragged_headroom = 1.5;         ///< capacity of the arena of token rows x the balanced size
};

struct CheckpointConfig {
  int64_t interval = 0;
  int64_t keep = 2;
  std::string resume = "auto";
};

enum class LogLevel : int { kDebug, kInfo, kWarning, kError };
inline const std::vector<std::string> kLogLevelNames = {"debug", "info", "warning", "error"};

struct LogConfig {
  int64_t interval = 1;
  bool tensorboard = true;
  bool metrics = true;
  LogLevel level = LogLevel::kInfo;
};

struct DumpConfig {
  std::vector<int64_t> steps;  ///< empty: nothing is dumped
  std::string dir = "dump";    ///< inside run.output_dir unless absolute
};

struct DebugConfig {
  DumpConfig dump;
  std::vector<int64_t> trace_steps;
  std::vector<int64_t> inject_nonfinite_steps;
};

}  // namespace moetrain
