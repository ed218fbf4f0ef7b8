// The instruction set the CPU kernels run on: the best one here, or a lesser one on demand.
#pragma once

#include <string>
#include <vector>

namespace moetrain::cpu {

/// Variants of the kernels, least first. kAvx512Bf16 is kAvx512 plus the bf16 dot instruction.
enum class Target { kBaseline, kNeon, kAvx2, kAvx512, kAvx512Bf16 };

const char* name_of(Target target);
/// Every variant this build has and this CPU can run, least first.
std::vector<Target> available_targets();
/// The variant in use. At start the best available, or the one the environment variable
/// MOETRAIN_CPU_TARGET names (baseline, neon, avx2, avx512, avx512_bf16).
Target current_target();
/// Whether the variant in use is kAvx512Bf16, for loops that Highway compiles for kAvx512: a plain
/// flag, so that they can ask for every vector.
extern bool bf16_instructions;
/// Uses `target` from now on; false (and nothing changes) when it is not available. Not while a
/// kernel runs.
bool set_target(Target target);

}  // namespace moetrain::cpu
