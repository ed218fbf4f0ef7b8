// `moetrain bench`: what this machine computes and moves, and what steps of a config cost.
#include "runtime/device/cpu/bench.h"

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/file.h"
#include "commands.h"
#include "config/load.h"
#include "fabric_options.h"
#include "train/bench_dispatch.h"
#include "train/bench_machine.h"
#include "train/bench_overlap.h"
#include "train/bench_step.h"
#include "train/bench_tools.h"

namespace moetrain {

namespace {

std::string kernels(const BenchCommand& c, Fabric& fabric) {
  cpu::BenchKernelOptions options;
  options.threads = c.threads > 0 ? c.threads : default_threads(fabric);
  options.filter = c.filter;
  options.seconds_per_case = c.seconds;
  fabric.barrier();
  return cpu::bench_kernels(options);
}

std::string dispatch(const BenchCommand& c, Fabric& fabric, const Machine& machine) {
  BenchDispatchOptions options;
  options.repeats = c.repeats;
  options.threads = c.threads;
  options.tokens = c.tokens;
  options.hidden = c.hidden;
  options.experts = c.experts;
  options.top_k = c.top_k;
  options.dtype = c.precision == "fp32" ? DType::kF32 : DType::kBF16;
  options.links = machine.links();
  options.transport = transport_named(c.transport);
  options.routing = c.routing;
  return bench_dispatch(fabric, options);
}

/// One variant as configured, then those of --against.
std::vector<StepVariant> variants(const BenchCommand& c) {
  if (c.source.file.empty()) throw UserError("bench step: --config FILE says what to run");
  std::vector<std::string> sets = c.source.sets;
  if (c.threads > 0) sets.push_back(cat("compute.threads=", c.threads));
  std::vector<StepVariant> out = {{"as configured", load_config(c.source.file, sets)}};
  std::vector<std::string> against = c.against;
  if (against.empty() && !c.json) against = {"compute.fusion=false"};
  for (const std::string& text : against) {
    std::vector<std::string> more = sets;
    bool reference = false;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(';', begin), text.size());
      const std::string part = text.substr(begin, end - begin);
      if (part == "reference")
        reference = true;
      else if (!part.empty())
        more.push_back(part);
      begin = end + 1;
    }
    out.push_back({text, load_config(c.source.file, more), reference});
  }
  return out;
}

void say(const Fabric& fabric, const std::string& text) {
  if (fabric.rank() != 0) return;
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int bench_step(const BenchCommand& c) {
  std::vector<StepVariant> all = variants(c);
  return run_on_fabric(fabric_options(all.front().config), [&](Fabric& fabric) {
    BenchStepOptions options;
    options.steps = c.steps;
    options.operations = !c.json;
    const StepsReport report = bench_steps(fabric, std::move(all), options);
    say(fabric, c.json ? report.json() : report.text());
    return 0;
  });
}

}  // namespace

int run_bench(const BenchCommand& c) {
  if (c.what == "step") return bench_step(c);
  const bool all = c.what == "all";
  if (!c.machine_file.empty() && !all && c.what != "machine") {
    throw UserError(cat("--write-machine needs `bench machine`, not `bench ", c.what, "`"));
  }
  FabricOptions fabric_options;
  fabric_options.ranks_per_node = c.ranks_per_node;
  return run_on_fabric(fabric_options, [&](Fabric& fabric) {
    Machine machine;
    BenchCollectivesOptions collectives;
    collectives.repeats = c.repeats;
    if (all || c.what == "machine") {
      const MachineMeasurement found = measure_machine(fabric, c.threads, collectives);
      machine = found.machine;
      say(fabric, found.text);
      if (!c.machine_file.empty() && fabric.rank() == 0) {
        write_file_atomically(c.machine_file, machine_yaml(machine));
      }
    }
    if (c.what == "collectives") say(fabric, bench_collectives(fabric, collectives).text);
    if (all || c.what == "overlap") say(fabric, bench_overlap({}).text);
    if (all || c.what == "kernels") say(fabric, kernels(c, fabric));
    if (c.what == "dispatch" || (all && fabric.size() > 1)) {
      say(fabric, dispatch(c, fabric, machine));
    }
    return 0;
  });
}

}  // namespace moetrain
