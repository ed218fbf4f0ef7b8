// The log, on spdlog (kept in this file: its headers cost seconds).
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace moetrain {

namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("moetrain");
    made->set_pattern("%^%L%$ %H:%M:%S %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum level_of(Severity level) {
  switch (level) {
    case Severity::kDebug: return spdlog::level::debug;
    case Severity::kInfo: return spdlog::level::info;
    case Severity::kWarning: return spdlog::level::warn;
    case Severity::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void log_setup(int rank, Severity lowest) {
  logger().set_level(rank == 0 ? level_of(lowest) : spdlog::level::err);
  if (rank != 0) logger().set_pattern("%^%L%$ %H:%M:%S [rank " + std::to_string(rank) + "] %v");
}

void log(Severity level, const std::string& message) {
  logger().log(level_of(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace moetrain
