// The peer library's time for one of our benchmark cases, if its module is there.
#pragma once

#include <functional>
#include <string>

#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

/// "oneDNN 2.6.3", or why there is none.
std::string peer_name();
/// Runs `op` on the peer with the operands and outputs of a launch, its weight packed beforehand;
/// empty where there is no peer or it does not know the op. The operands must outlive it. Grouped
/// products must give every expert as many rows.
std::function<void()> peer_launch(const char* op, const LaunchArgs& args);

}  // namespace moetrain::cpu
