// Measures a machine.
#include "train/bench_machine.h"

#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "runtime/device/cpu/bench.h"
#include "runtime/device/device.h"
#include "train/bench_tools.h"

namespace moetrain {

namespace {

/// Four digits: more would be noise in a file that people read and plans are made from.
void shorten(double& value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3e", value);
  value = std::stod(text);
}

}  // namespace

RankPeaks probe_rank_peaks(Fabric& fabric, int threads) {
  fabric.barrier();
  const cpu::MachinePeaks mine = cpu::probe_peaks(threads);
  auto slowest = [&](double value) {
    const std::vector<double> all = gather_numbers(fabric, value);
    return *std::min_element(all.begin(), all.end());
  };
  return {slowest(mine.f32_flops), slowest(mine.bf16_flops), slowest(mine.copy_bytes)};
}

MachineMeasurement measure_machine(Fabric& fabric, int threads,
                                   const BenchCollectivesOptions& options) {
  if (threads <= 0) threads = default_threads(fabric);
  int per_node = 0;
  for (int r = 0; r < fabric.size(); ++r) per_node += fabric.node_of(r) == 0;
  MachineMeasurement out;
  Machine& m = out.machine;
  m.ranks_per_node = std::max(1, per_node);
  m.name = cat("measured: ", fabric.broadcast(make_cpu_device({threads, false})->describe()), ", ",
               m.ranks_per_node, m.ranks_per_node == 1 ? " rank" : " ranks", " per node");
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(sysconf(_SC_PAGE_SIZE)) / neighbours_of(fabric);
  const std::vector<double> memories = gather_numbers(fabric, memory);
  m.memory = *std::min_element(memories.begin(), memories.end());
  const RankPeaks peaks = probe_rank_peaks(fabric, threads);
  m.fp32_flops = peaks.fp32;
  m.bf16_flops = peaks.bf16;
  m.memory_bandwidth = peaks.copy;
  out.text = cat(m.name, "\n",
                 format_line("one rank of %d, all at work: peak %.1f GFLOP/s fp32, %.1f GFLOP/s "
                             "bf16; copies %.1f GB/s (read + written); ",
                             fabric.size(), peaks.fp32 / 1e9, peaks.bf16 / 1e9, peaks.copy / 1e9),
                 human_bytes(m.memory), " of memory\n");
  const CollectivesReport links = bench_collectives(fabric, options);
  out.text += links.text;
  if (links.intra) {
    m.intra_latency = links.intra->latency;
    m.intra_bandwidth = links.intra->bandwidth;
  }
  if (links.inter) {
    m.inter_latency = links.inter->latency;
    m.inter_bandwidth = links.inter->bandwidth;
  }
  for (double* value : {&m.fp32_flops, &m.bf16_flops, &m.memory_bandwidth, &m.memory,
                        &m.intra_latency, &m.intra_bandwidth, &m.inter_latency,
                        &m.inter_bandwidth}) {
    shorten(*value);
  }
  return out;
}

}  // namespace moetrain
