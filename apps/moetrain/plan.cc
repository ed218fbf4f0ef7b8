// `moetrain plan`: what a run would need and do, without running it.
#include <iostream>

#include "base/error.h"
#include "checkpoint/file.h"
#include "commands.h"
#include "config/load.h"
#include "config/validate.h"
#include "train/inspect_plan.h"
#include "train/search_plan.h"

namespace moetrain {

namespace {

Config load_for(const ConfigSource& source, const PlanCommand& c, int64_t* world,
                const Machine& machine) {
  Config config = load_config(source.file, source.sets);
  *world = c.world_size > 0 ? c.world_size : smallest_world_size(config);
  resolve(config, *world, machine.ranks_per_node);
  validate(config, *world);
  if (c.rank < 0 || c.rank >= *world) {
    throw UserError(cat("--rank ", c.rank, ": ranks are 0 to ", *world - 1));
  }
  return config;
}

std::string machine_name(const PlanCommand& c) {
  if (!c.machine.empty()) return c.machine;
  return load_config(c.source.file, c.source.sets).compute.machine.value_or("");
}

}  // namespace

int run_plan(const PlanCommand& c) {
  const Machine machine = load_machine(machine_name(c));
  if (c.search) {
    Config config = load_config(c.source.file, c.source.sets);
    const int64_t world = c.world_size > 0 ? c.world_size : smallest_world_size(config);
    std::cout << search_plans(config, world, machine);
    return 0;
  }
  int64_t world = 0;
  const Config config = load_for(c.source, c, &world, machine);
  PlanInspection report(config, c.rank, world, machine);
  report.include_stages();
  if (!c.diff.empty()) {
    int64_t other_world = 0;
    const Config other = load_for({c.diff, {}}, c, &other_world, machine);
    PlanInspection changed(other, c.rank, other_world, machine);
    changed.include_stages();
    std::cout << plan_diff(report, changed);
    return 0;
  }
  std::cout << (c.json ? report.json() + "\n" : report.text());
  if (c.explain) std::cout << report.explain();
  if (c.tape) std::cout << print(report.compiled().plan);
  if (!c.trace.empty()) write_file_atomically(c.trace, report.trace());
  return 0;
}

}  // namespace moetrain
