// Two kinds of failure: UserError (the user's config, files or topology) and CHECK (our bug).
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"

namespace moetrain {

/// Exit codes people rely on; the same on every rank.
enum ExitCode : int {
  kExitDone = 0,
  kExitFailure = 1,
  kExitRefused = 2,
  kExitNumbers = 3,
  kExitResubmit = 75,
};

/// One complaint: where it is (`file:line:column`, or empty) and what to do about it.
struct Diagnostic {
  std::string where;
  std::string message;
};

/// Something the user can mend. Collects every complaint so that all are shown at once.
class UserError : public std::runtime_error {
 public:
  explicit UserError(std::string message, int exit_code = kExitRefused)
      : UserError(std::vector<Diagnostic>{{"", std::move(message)}}, exit_code) {}
  explicit UserError(std::vector<Diagnostic> diagnostics, int exit_code = kExitRefused)
      : std::runtime_error(render(diagnostics)),
        diagnostics_(std::move(diagnostics)),
        exit_code_(exit_code) {}

  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  int exit_code() const { return exit_code_; }

 private:
  static std::string render(const std::vector<Diagnostic>& diagnostics);

  std::vector<Diagnostic> diagnostics_;
  int exit_code_;
};

/// A broken promise inside moetrain. Always on.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace moetrain

/// MT_CHECK(condition, "detail ", value, ...): throws InternalError when the condition is false.
#define MT_CHECK(condition, ...)                                                      \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::moetrain::check_failed(__FILE__, __LINE__, #condition, ::moetrain::cat(__VA_ARGS__)); \
  } while (false)
