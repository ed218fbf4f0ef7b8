// metrics.jsonl: one object per step, append-only across restarts, no step twice.
#pragma once

#include <cstdint>
#include <memory>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file.h"

namespace moetrain {

/// Tokens per routed expert relative to the balanced load (1 = balanced), over all MoE layers.
struct ExpertLoad {
  double min = 0, mean = 0, max = 0, std = 0;
};

/// What one optimizer step is known by. Field names are those of the files.
struct StepMetrics {
  int64_t step = 0;     ///< from 1
  int64_t tokens = 0;   ///< consumed so far, this step included
  int64_t samples = 0;  ///< sequences consumed so far
  int64_t global_batch_size = 0;
  double loss = 0;  ///< the total that is differentiated
  double main_loss = 0;
  std::optional<double> mtp_loss;      ///< only of models with MTP layers
  std::optional<double> balance_loss;  ///< only of models with MoE layers
  double grad_norm = 0;                ///< before clipping
  double learning_rate = 0;
  double step_time_s = 0;
  double tokens_per_second = 0;
  double tflops_per_rank = 0;
  std::optional<double> mfu;  ///< if the machine's peak is known
  std::optional<double> validation_loss;
  int64_t skipped_steps = 0;          ///< so far, for non-finite gradients
  std::vector<double> max_violation;  ///< per MoE layer: max load / balanced load - 1
  std::optional<ExpertLoad> expert_load;
  int64_t bytes_inter_node = 0;
  int64_t bytes_intra_node = 0;
  double comm_s = 0;          ///< seconds of the step with transfers under way, mean over ranks
  double exposed_comm_s = 0;  ///< of those, seconds that computation stood still
  std::map<std::string, double> exposed_comm_by_kind;  ///< of rank 0, by op and group
  int64_t memory_peak_bytes = 0;
};

/// One line of JSON without the newline. Non-finite numbers are written as null. `max_violation` is
/// the largest over layers, `max_violation_per_layer` the list.
std::string to_json_line(const StepMetrics& metrics);

/// (tag, value) pairs of everything numeric, for TensorBoard.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& metrics);

/// The file, open for appending. Rank 0 only.
class MetricsLog {
 public:
  /// Continues after step `resume_step` (0: a new run): lines of later steps belong to a life of
  /// the run that was lost and are dropped, as is a torn last line; the rest stays byte for byte.
  /// The file is replaced atomically, and only if something has to go.
  MetricsLog(const std::string& path, int64_t resume_step);
  /// Appends one line in one write: a killed process loses at most the line being written. `step`
  /// must be above the last one.
  void append(const StepMetrics& metrics);
  /// To the disk; call before a checkpoint of the same step is published.
  void sync() { out_->sync(); }

 private:
  int64_t last_step_;
  std::unique_ptr<FileWriter> out_;
};

/// A point of the loss curve.
struct LossPoint {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> validation;
};

/// The losses in a metrics file; lines that cannot be read are left out.
std::vector<LossPoint> read_losses(const std::string& path);

}  // namespace moetrain
