// Ends of a process that nobody planned: one message, and the whole job ends.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace moetrain::comm {

/// The message block of a failure of this process: rank, host, process, message, exit code.
std::string failure_text(int rank, int ranks, const std::string& message, int exit_code);
/// Writes to standard error in one piece, past all buffers.
void write_error(const std::string& text);

/// This machine's name.
std::string host_name();

}  // namespace moetrain::comm

namespace moetrain {

/// While alive, turns std::terminate and exit() before the end of the job into `abort(message,
/// code)` (exit(0) counts as failure 1, exit(n) keeps n) and makes deadly signals (SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGABRT) print rank, host and a back trace before they kill the process, which
/// makes the launcher end the others. One at a time per process.
class FaultGuard {
 public:
  using Abort = std::function<void(const std::string& message, int exit_code)>;
  FaultGuard(int rank, int ranks, Abort abort);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

/// Lets SIGTERM, SIGINT and SIGUSR1 only be noted, for stop_requested(). The trainer agrees on it
/// (Fabric::max_over_ranks), saves, and ends with exit code 75. A second SIGTERM or SIGINT, at
/// least half a second after the first (launchers may deliver one twice), leaves at once with 128 +
/// its number and nothing saved.
void catch_stop_signals();

/// From now on the end of the parent process (a launcher that crashed or was killed; it would end
/// its ranks about a second later) counts as SIGUSR1. Only for processes that a launcher started.
void stop_when_launcher_dies();

/// The first stopping signal this process got, or 0.
int stop_requested();

}  // namespace moetrain
