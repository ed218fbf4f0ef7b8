// Chooses the instruction set once, through Highway's table of compiled targets.
#include "runtime/device/cpu/kernels/target.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "runtime/device/cpu/kernels/micro.h"

// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/hwy_targets.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
// clang-format on

namespace moetrain::cpu {

bool bf16_instructions = false;

namespace {

int64_t mask_of(Target target) {
  switch (target) {
    case Target::kBaseline:
      return HWY_STATIC_TARGET;
    case Target::kNeon:
      return HWY_NEON;
    case Target::kAvx2:
      return HWY_AVX2;
    case Target::kAvx512:
    case Target::kAvx512Bf16:
      return HWY_AVX3;
  }
  return 0;
}

int64_t supported() {
  static const int64_t mask = hwy::SupportedTargets() & (HWY_TARGETS);
  return mask;
}

bool available(Target target) {
  // Where a better set is the baseline (a native build), the portable one is not compiled.
  if (target == Target::kAvx512Bf16 && !bf16_dot_supported()) return false;
  if (target != Target::kBaseline && mask_of(target) == HWY_STATIC_TARGET) return true;
  return (supported() & mask_of(target)) != 0;
}

void choose(Target target) {
  hwy::SetSupportedTargetsForTest(mask_of(target));
  hwy::GetChosenTarget().Update(mask_of(target));
  bf16_instructions = target == Target::kAvx512Bf16;
}

Target first_choice() {
  const std::vector<Target> all = available_targets();
  Target target = all.back();
  if (const char* name = std::getenv("MOETRAIN_CPU_TARGET"); name && *name) {
    const auto named = std::find_if(all.begin(), all.end(),
                                    [&](Target t) { return std::strcmp(name, name_of(t)) == 0; });
    if (named == all.end()) {
      std::string known;
      for (Target t : all) known += cat(known.empty() ? "" : ", ", name_of(t));
      throw UserError(cat("MOETRAIN_CPU_TARGET=", name,
                          ": this build or CPU has no such kernels; it has ", known));
    }
    target = *named;
  }
  choose(target);
  return target;
}

Target& chosen() {
  static Target target = first_choice();
  return target;
}

}  // namespace

const char* name_of(Target target) {
  constexpr const char* kNames[] = {"baseline", "neon", "avx2", "avx512", "avx512_bf16"};
  return kNames[static_cast<int>(target)];
}

std::vector<Target> available_targets() {
  std::vector<Target> found;
  for (Target t :
       {Target::kBaseline, Target::kNeon, Target::kAvx2, Target::kAvx512, Target::kAvx512Bf16}) {
    if (available(t)) found.push_back(t);
  }
  return found;
}

Target current_target() { return chosen(); }

bool set_target(Target target) {
  if (!available(target)) return false;
  chosen() = target;
  choose(target);
  return true;
}

}  // namespace moetrain::cpu
