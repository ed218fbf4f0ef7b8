// Files of a run.
#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/file.h"
#include "train/curve.h"

namespace moetrain {

RunLock::RunLock(const std::string& output_dir) {
  std::error_code error;
  std::filesystem::create_directories(output_dir, error);
  if (error) {
    throw UserError(cat("run.output_dir: cannot make ", output_dir, ": ", error.message()));
  }
  const std::string path = output_dir + "/.lock";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UserError(cat("run.output_dir: cannot write ", path, ": ", strerror(errno)));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    close(fd_);
    fd_ = -1;
    throw UserError(cat("run.output_dir: another run is writing to ", output_dir,
                        "; wait for it or give this run its own output_dir"));
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

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
