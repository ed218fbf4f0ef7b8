// Start and end of a program on the ranks of a job.
#include "train/fabric.h"

#include <iostream>

#include "base/error.h"
#include "base/log.h"

namespace moetrain {

int run_on_fabric(int, char**, const FabricOptions&, const std::function<int(Fabric&)>& body) {
  const std::unique_ptr<Fabric> fabric = make_single_fabric();
  log_setup(fabric->rank());
  try {
    return body(*fabric);
  } catch (const AgreedError& e) {
    return e.exit_code();
  } catch (const UserError& e) {
    std::cerr << e.what() << std::endl;
    return e.exit_code();
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return kExitFailure;
  }
}

void agree(Fabric& fabric, const std::function<void()>& work) {
  std::string mine;
  int code = 0;
  try {
    work();
  } catch (const UserError& e) {
    code = e.exit_code();
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
