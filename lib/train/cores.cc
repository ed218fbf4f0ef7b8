// Threads of ranks against cores of nodes.
#include "train/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/text.h"
#include "train/bench_tools.h"

namespace moetrain {

int64_t rank_threads(const Config& config, const Fabric& fabric) {
  return config.compute.threads.is_auto() ? default_threads(fabric) : *config.compute.threads;
}

std::string core_advice(const std::vector<RankCores>& ranks) {
  struct Node {
    int64_t ranks = 0, threads = 0, online = 1;
    std::set<int> usable;
  };
  std::map<int, Node> nodes;
  std::string bound;
  for (size_t r = 0; r < ranks.size(); ++r) {
    Node& node = nodes[ranks[r].node];
    ++node.ranks;
    node.threads += ranks[r].threads;
    node.online = ranks[r].online;
    node.usable.insert(ranks[r].allowed.begin(), ranks[r].allowed.end());
    const auto allowed = static_cast<int64_t>(ranks[r].allowed.size());
    if (bound.empty() && ranks[r].threads > allowed) {
      bound = cat("rank ", r, " computes with ", ranks[r].threads, " threads but is bound to ",
                  allowed, allowed == 1 ? " core" : " cores",
                  "; start with mpirun --bind-to none (srun: --cpu-bind=none), or lower "
                  "compute.threads");
    }
  }
  for (const auto& [index, node] : nodes) {
    const auto cores = static_cast<int64_t>(node.usable.size());
    if (node.threads > cores) {
      return cat("oversubscribed: node ", index, " has ", cores, cores == 1 ? " core" : " cores",
                 " for ", node.ranks, node.ranks == 1 ? " rank" : " ranks", " with ", node.threads,
                 " threads in all; expect a slow run (fewer ranks per node, or lower "
                 "compute.threads)",
                 cores < node.online ? cat(". The launcher binds them to ", cores, " of its ",
                                           node.online, " cores: mpirun --bind-to none")
                                     : "");
    }
    if (!bound.empty()) return bound;
    if (cores < node.online && node.threads <= cores && node.threads < node.online) {
      return cat("the ranks of node ", index, " are bound to ", cores, " of its ", node.online,
                 " cores; if all of it is yours, start with mpirun --bind-to none");
    }
  }
  return "";
}

std::string check_cores(const Config& config, Fabric& fabric) {
  std::ostringstream mine;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  mine << (host[0] ? host : "?") << ' ' << rank_threads(config, fabric) << ' '
       << sysconf(_SC_NPROCESSORS_ONLN);
  // as large as kernels are built for; a smaller set is refused on big machines
  constexpr int kCores = 8192;
  cpu_set_t* set = CPU_ALLOC(kCores);
  const size_t bytes = CPU_ALLOC_SIZE(kCores);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int c = 0; c < kCores; ++c) {
      if (CPU_ISSET_S(c, bytes, set)) mine << ' ' << c;
    }
  }
  CPU_FREE(set);
  std::vector<RankCores> ranks;
  std::map<std::string, int> hosts;  // not the fabric's nodes: those can be cut smaller than a host
  for (const std::string& text : fabric.gather(mine.str())) {
    RankCores rank;
    std::istringstream in(text);
    std::string name;
    in >> name;
    rank.node = hosts.emplace(name, static_cast<int>(hosts.size())).first->second;
    in >> rank.threads >> rank.online;
    for (int core; in >> core;) rank.allowed.push_back(core);
    ranks.push_back(std::move(rank));
  }
  return core_advice(ranks);
}

}  // namespace moetrain
