// Start and end of a program on the ranks of a job: fabric, exit code, one message for one fault.
#pragma once

#include <functional>

#include "base/log.h"
#include "runtime/comm/comm.h"

namespace moetrain {

struct FabricOptions {
  int ranks_per_node = 0;       ///< forms nodes of so many ranks; 0: by host
  double hang_timeout_s = 600;  ///< a silent rank ends the job after this long; 0: never
  Severity log_level = Severity::kInfo;
};

/// Joins the job (under mpirun or Slurm, or alone as one rank), runs `body` and returns its exit code, or
/// that of the failure: UserError's own, 1 for anything else. A failure of one rank ends all within
/// seconds; its message is shown once.
int run_on_fabric(const FabricOptions& options, const std::function<int(Fabric&)>& body);

/// Runs `work` on every rank and lets all ranks know of failures: if any rank throws a UserError, every
/// rank throws AgreedError after rank 0 has shown the first one. For work whose faults are found before
/// ranks start to wait for one another.
void agree(Fabric& fabric, const std::function<void()>& work);

/// Already shown; carries the exit code all ranks end with.
class AgreedError : public std::exception {
 public:
  explicit AgreedError(int exit_code) : exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }
  const char* what() const noexcept override { return "refused (message shown by rank 0)"; }

 private:
  int exit_code_;
};

}  // namespace moetrain
