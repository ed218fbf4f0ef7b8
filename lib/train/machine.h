// A machine as the planner sees it: what one rank computes, moves and holds, and its links.
#pragma once

#include <cstdint>
#include <string>

#include "compile/shard/reshard.h"
#include "config/running.h"

namespace moetrain {

/// Speeds of one rank. The defaults stand for one accelerator of an eight-card node.
struct Machine {
  std::string name = "built-in: eight accelerators per node";
  double bf16_flops = 300e12;  ///< matrix products, FLOP/s
  double fp32_flops = 75e12;
  double memory_bandwidth = 1.6e12;  ///< bytes per second
  double memory = 64.0 * (1ll << 30);
  int64_t ranks_per_node = 8;
  double intra_latency = 3e-6, intra_bandwidth = 100e9;  ///< s, bytes per second and rank
  double inter_latency = 10e-6, inter_bandwidth = 25e9;

  LinkModel links() const;
  double matmul_flops(Precision precision) const {
    return precision == Precision::kBf16 ? bf16_flops : fp32_flops;
  }
};

/// Reads a machine file (flat YAML with the names above; sizes may carry units). "" is the built-in
/// one. UserError naming file, line and the nearest valid key.
Machine load_machine(const std::string& path);
/// The file that load_machine reads back.
std::string machine_yaml(const Machine& machine);
/// Twelve hex digits over every value: the same where the planner sees the same machine.
std::string machine_hash(const Machine& machine);

}  // namespace moetrain
