// From a config to how a job is joined.
#pragma once

#include "config/config.h"
#include "train/fabric.h"

namespace moetrain {

inline FabricOptions fabric_options(const Config& config) {
  FabricOptions options;
  options.ranks_per_node = static_cast<int>(config.parallel.ranks_per_node.value_or(0));
  options.hang_timeout_s = config.run.hang_timeout;
  switch (config.log.level) {
    case LogLevel::kDebug:
      options.log_level = Severity::kDebug;
      break;
    case LogLevel::kInfo:
      options.log_level = Severity::kInfo;
      break;
    case LogLevel::kWarning:
      options.log_level = Severity::kWarning;
      break;
    case LogLevel::kError:
      options.log_level = Severity::kError;
      break;
  }
  return options;
}

}  // namespace moetrain
