// One log for the whole program: rank 0 speaks, other ranks only about their own faults.
#pragma once

#include <string>

namespace moetrain {

enum class Severity { kDebug, kInfo, kWarning, kError };

/// Sets this process's rank and the lowest level shown. Other ranks than 0 show errors only.
/// Call once before threads start.
void log_setup(int rank, Severity lowest = Severity::kInfo);

/// Writes one line to standard error, `[rank N]` in front on ranks other than 0. Thread-safe.
void log(Severity level, const std::string& message);

inline void log_info(const std::string& message) { log(Severity::kInfo, message); }
inline void log_warning(const std::string& message) { log(Severity::kWarning, message); }
inline void log_error(const std::string& message) { log(Severity::kError, message); }

}  // namespace moetrain
