// The fusion passes by name, in the order they run.
#pragma once

#include <span>

#include "compile/fuse/report.h"
#include "compile/partition.h"

namespace moetrain {

struct FusionPass {
  const char* name;  ///< as in compute.fusion_passes
  LocalGraph (*run)(const LocalGraph& local, FusionReport& report);
};

std::span<const FusionPass> fusion_passes();

}  // namespace moetrain
