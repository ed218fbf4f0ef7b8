// Formatting and terminal detection of the progress line.
#include "train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/text.h"

namespace moetrain {
namespace {

template <class... Args>
std::string print(const char* format, Args... args) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, format, args...);
  return buffer;
}

/// 12345 -> "12.3K".
std::string human_count(double value) {
  const char* const units[] = {"", "K", "M", "G"};
  size_t unit = 0;
  while (value >= 1000 && unit < 3) {
    value /= 1000;
    ++unit;
  }
  return print(unit == 0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

}  // namespace

bool output_is_terminal() {
  const char* term = std::getenv("TERM");
  if (!term || std::strcmp(term, "dumb") == 0 || !::isatty(STDOUT_FILENO)) return false;
  if (std::getenv("SLURM_JOB_ID")) return false;
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return true;
  std::error_code error;
  const std::string launcher_output =
      std::filesystem::read_symlink(cat("/proc/", ::getppid(), "/fd/1"), error).string();
  return !error &&
         (launcher_output.starts_with("/dev/pts/") || launcher_output.starts_with("/dev/tty"));
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<long long>(std::llround(std::min(seconds, 1e15)));
  if (s < 60) return print("%llds", s);
  if (s < 3600) return print("%lldm%02llds", s / 60, s % 60);
  if (s < 86400) return print("%lldh%02lldm", s / 3600, s % 3600 / 60);
  return print("%lldd%02lldh", s / 86400, s % 86400 / 3600);
}

ProgressLine::ProgressLine(int64_t total_steps, int64_t interval, bool terminal, std::FILE* out)
    : total_steps_(total_steps),
      interval_(std::max<int64_t>(interval, 1)),
      terminal_(terminal),
      out_(out) {}

ProgressLine::~ProgressLine() { finish(); }

std::string ProgressLine::text(const StepMetrics& m) const {
  std::string line = cat("step ", m.step, "/", total_steps_, print(" | loss %.4f", m.loss));
  if (m.validation_loss) line += print(" | validation %.4f", *m.validation_loss);
  line += print(" | lr %.3g | norm %.3g", m.learning_rate, m.grad_norm);
  if (!m.max_violation.empty()) {
    line += print(" | violation %.2f",
                  *std::max_element(m.max_violation.begin(), m.max_violation.end()));
  }
  if (m.skipped_steps > 0) line += cat(" | skipped ", m.skipped_steps);
  line += " | " + human_count(m.tokens_per_second) + " tok/s";
  if (m.tflops_per_rank > 0) line += print(" | %.3g TFLOP/s/rank", m.tflops_per_rank);
  if (m.mfu) line += print(" | MFU %.1f%%", 100 * *m.mfu);
  line += print(" | %.3g s/step", m.step_time_s);
  const double left = static_cast<double>(std::max<int64_t>(total_steps_ - m.step, 0));
  if (seconds_per_step_ > 0) line += " | ETA " + human_duration(left * seconds_per_step_);
  return line;
}

void ProgressLine::update(const StepMetrics& m) {
  ++updates_;
  const double weight =
      std::max(0.1, 1.0 / static_cast<double>(std::max<int64_t>(updates_ - 1, 1)));
  seconds_per_step_ = updates_ <= 2
                          ? m.step_time_s
                          : seconds_per_step_ + weight * (m.step_time_s - seconds_per_step_);
  if (terminal_) {
    std::fprintf(out_, "\r\033[K%s", text(m).c_str());
    open_ = true;
  } else {
    const bool due = updates_ == 1 || m.step % interval_ == 0 || m.step == total_steps_ ||
                     m.validation_loss.has_value();
    if (!due) return;
    std::fprintf(out_, "%s\n", text(m).c_str());
  }
  std::fflush(out_);
}

void ProgressLine::finish() {
  if (!open_) return;
  open_ = false;
  std::fputc('\n', out_);
  std::fflush(out_);
}

}  // namespace moetrain
