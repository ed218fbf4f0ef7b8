// What a run leaves in its output directory besides checkpoints: resolved config, plan, logs, curves.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/tensorboard.h"

namespace moetrain {

/// Rank 0's files of one run.
class RunFolder {
 public:
  /// Continues after `resume_step` (0: from the start).
  RunFolder(const Config& config, int64_t resume_step, int64_t total_steps);
  void write(const std::string& name, const std::string& content) const;
  void log(const StepMetrics& metrics);
  /// Brings logs to the disk, before a checkpoint of the same step.
  void sync();
  /// Ends the progress line and draws loss.svg.
  void finish();
  /// Ends the progress line so that other output can follow.
  void pause() { progress_->finish(); }

 private:
  const Config& config_;
  std::string dir_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<EventWriter> events_;
  std::unique_ptr<ProgressLine> progress_;
};

}  // namespace moetrain
