// Files of a run.
#include "train/run_folder.h"

#include "checkpoint/file.h"
#include "train/curve.h"

namespace moetrain {

RunFolder::RunFolder(const Config& config, int64_t resume_step, int64_t total_steps)
    : config_(config), dir_(config.run.output_dir) {
  if (config.log.metrics) {
    metrics_ = std::make_unique<MetricsLog>(dir_ + "/metrics.jsonl", resume_step);
  }
  if (config.log.tensorboard) {
    events_ = std::make_unique<EventWriter>(dir_ + "/tensorboard", resume_step);
  }
  progress_ = std::make_unique<ProgressLine>(total_steps, config.log.interval,
                                             output_is_terminal());
}

void RunFolder::write(const std::string& name, const std::string& content) const {
  write_file_atomically(dir_ + "/" + name, content);
}

void RunFolder::log(const StepMetrics& metrics) {
  if (metrics_) metrics_->append(metrics);
  if (events_) events_->write(metrics.step, scalars_of(metrics));
  progress_->update(metrics);
}

void RunFolder::sync() {
  if (metrics_) metrics_->sync();
  if (events_) events_->sync();
}

void RunFolder::finish() {
  progress_->finish();
  sync();
  if (metrics_) {
    write_loss_curve(dir_ + "/metrics.jsonl", dir_ + "/loss.svg", config_.run.name);
  }
}

}  // namespace moetrain
