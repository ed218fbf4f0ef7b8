// Start and end of a program on the ranks of a job.
#include "train/fabric.h"

#include <csignal>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "runtime/comm/launch.h"

namespace moetrain {

int run_on_fabric(const FabricOptions& options, const std::function<int(Fabric&)>& body) {
  // A launcher that is told to end, or a pipe that closed, takes no more output; a run must still
  // save.
  std::signal(SIGPIPE, SIG_IGN);
  MpiOptions mpi;
  mpi.ranks_per_node = options.ranks_per_node;
  mpi.stall_seconds = options.hang_timeout_s;
  return run_job(mpi, [&](Fabric& fabric) {
    log_setup(fabric.rank(), options.log_level);
    try {
      return body(fabric);
    } catch (const AgreedError& e) {
      return e.exit_code();
    }
  });
}

void agree(Fabric& fabric, const std::function<void()>& work) {
  std::string mine;
  int code = 0;
  try {
    work();
  } catch (const UserError& e) {
    code = e.exit_code();
    mine = std::to_string(code) + "\n" + e.what();
  } catch (const std::filesystem::filesystem_error& e) {  // folders given by the user
    code = kExitRefused;
    mine = std::to_string(code) + "\n" + e.what();
  }
  const std::vector<std::string> all = fabric.gather(mine);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const size_t line = all[r].find('\n');
    const bool everywhere = all.size() == 1 || all.back() == all[r];
    if (fabric.rank() == 0) {
      std::cerr << (everywhere ? "" : cat("rank ", r, ": ")) << all[r].substr(line + 1)
                << std::endl;
    }
    throw AgreedError(std::stoi(all[r].substr(0, line)));
  }
}

}  // namespace moetrain
