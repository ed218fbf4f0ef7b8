// Runs the benchmark cases on the kernel table and writes the comparison.
#include "runtime/device/cpu/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <list>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "runtime/device/cpu/bench_cases.h"
#include "runtime/device/cpu/bench_fused.h"
#include "runtime/device/cpu/bench_memory.h"
#include "runtime/device/cpu/bench_peer.h"
#include "runtime/device/cpu/bench_probe.h"
#include "runtime/device/cpu/kernels/kernels.h"
#include "runtime/device/cpu/kernels/target.h"

namespace moetrain::cpu {
namespace {

/// Best rate of `runs` runs of work(worker) on all workers at once; work returns its amount.
template <class Work>
double best_rate(ThreadPool& pool, int runs, Work work) {
  double best = 0, spent = 0;
  // Threads that have just begun may share a core until the system moves one.
  for (int i = 0; i < runs || spent < 0.2; ++i) {
    std::vector<double> done(pool.size());
    const double seconds = seconds_of(pool.size(), [&] {
      pool.run(pool.size(), [&](int64_t task, int) { done[task] = work(task); });
    });
    double total = 0;
    for (double d : done) total += d;
    best = std::max(best, total / seconds);
    spent += seconds;
  }
  return best;
}

/// Operands and outputs of one case, with memory of their own.
struct Launch {
  std::vector<Pages> memory;
  std::vector<Tensor> in, out;
  std::vector<Type> in_types, out_types;
  double bytes = 0;

  Tensor allocate(DType dtype, Shape shape) {
    memory.emplace_back(std::max<int64_t>(1, numel(shape)) * size_of(dtype));
    return {memory.back().data(), dtype, std::move(shape)};
  }
};

Shape runtime_shape(const Type& type, int64_t rows) {
  if (!type.ragged) return type.shape;
  return {rows, type.shape.back()};
}

Launch make_launch(const BenchCase& c) {
  Launch launch;
  for (const BenchOperand& o : c.operands) {
    launch.in_types.push_back(o.type);
    launch.in.push_back(launch.allocate(o.type.dtype, runtime_shape(o.type, o.rows)));
    fill(launch.in.back(), o.integers);
    launch.bytes += static_cast<double>(launch.in.back().bytes());
  }
  launch.out_types = c.op->infer(c.attrs, launch.in_types);
  for (size_t i = 0; i < launch.out_types.size(); ++i) {
    const Type& type = launch.out_types[i];
    const int shared = c.op->alias ? c.op->alias(c.attrs, static_cast<int>(i)) : -1;
    if (shared >= 0)
      launch.out.push_back(launch.in[shared]);
    else
      launch.out.push_back(launch.allocate(type.dtype, runtime_shape(type, c.rows)));
    launch.bytes += static_cast<double>(launch.out.back().bytes());
  }
  return launch;
}

/// One kernel on one shape.
struct KernelTiming {
  std::string kernel;  ///< Kernel::name
  std::string shape;   ///< "2048x512x1408"
  DType dtype;
  double seconds = 0;  ///< median
  double best_seconds = 0;
  double packed_seconds = 0;  ///< median with the weight packed beforehand; 0: no such thing
  double peer_seconds = 0;    ///< the peer library's median; 0: it has no such product
  double flops = 0;           ///< of matrix products; 0 for streaming kernels
  double bytes = 0;           ///< read plus written, for streaming kernels
};

KernelTiming time_case(const BenchCase& c, const Kernel& kernel, DType dtype, double budget,
                       ThreadPool& pool) {
  Launch launch = make_launch(c);
  const size_t bytes =
      kernel.workspace ? kernel.workspace(c.attrs, launch.in_types, launch.out_types, pool.size())
                       : 0;
  const Pages workspace(bytes);
  LaunchArgs args{c.attrs, launch.in, launch.out, workspace.data(), bytes, pool};
  auto median_and_best = [&](const auto& run) {
    run();
    std::vector<double> times;
    double spent = 0;
    while (times.size() < 3 || (spent < budget && times.size() < 1000)) {
      times.push_back(seconds_of(pool.size(), run));
      spent += times.back();
    }
    std::sort(times.begin(), times.end());
    return std::pair(times[times.size() / 2], times[0]);
  };
  const auto own = [&] { kernel.run(args); };
  const auto [median, best] = median_and_best(own);
  KernelTiming timing{kernel.name, c.shape, dtype, median, best, 0, 0, 0, launch.bytes};
  std::list<Pages> copies;
  std::vector<const float*> packed(launch.in.size());
  for (size_t i = 0; kernel.packed_floats && i < launch.in.size(); ++i) {
    const int64_t floats = kernel.packed_floats(c.attrs, launch.in_types[i], i);
    if (floats == 0) continue;
    copies.emplace_back(floats * sizeof(float));
    auto* data = reinterpret_cast<float*>(copies.back().data());
    kernel.pack(launch.in[i], data, pool);
    packed[i] = data;
  }
  if (!copies.empty()) {
    args.packed = packed;
    timing.packed_seconds = median_and_best(own).first;
  }
  if (const auto peer = peer_launch(c.op->name, args)) {
    timing.peer_seconds = median_and_best(peer).first;
  }
  // The cost of an op counts the largest ragged extent once, which is what the cases fill.
  timing.flops = c.op->cost(c.attrs, launch.in_types, launch.out_types).matmul_flops;
  return timing;
}

std::string line_of(const KernelTiming& t, const MachinePeaks& peaks) {
  const bool compute = t.flops > 0;
  const double amount = compute ? t.flops : t.bytes;
  const double peak = compute ? peaks.of(t.dtype) : peaks.copy_bytes;
  char text[200];
  std::snprintf(text, sizeof text, "%-24s %-22s %-5s %10.1f us %8.1f %-7s %5.1f %% %5.1f %%",
                t.kernel.c_str(), t.shape.c_str(), moetrain::name_of(t.dtype), t.seconds * 1e6,
                amount / t.seconds / 1e9, compute ? "GFLOP/s" : "GB/s",
                100 * amount / t.seconds / peak, 100 * amount / t.best_seconds / peak);
  std::string line = text;
  if (!compute) return line + "\n";
  for (double seconds : {t.packed_seconds, t.peer_seconds}) {
    std::snprintf(text, sizeof text, " %5.1f %%", 100 * amount / seconds / peak);
    line += seconds > 0 ? text : "       -";
  }
  return line + "\n";
}

template <class Done>
void time_all(const BenchKernelOptions& options, Done done) {
  ThreadPool pool(options.threads);
  for (DType dtype : options.dtypes) {
    for (const BenchCase& c : bench_cases(options, dtype)) {
      std::vector<Type> in;
      for (const BenchOperand& o : c.operands) in.push_back(o.type);
      const Kernel* kernel = find_kernel(c.op->name, c.attrs, in, c.op->infer(c.attrs, in));
      if (!kernel || std::string(kernel->name).find(options.filter) == std::string::npos) continue;
      done(time_case(c, *kernel, dtype, options.seconds_per_case, pool));
    }
  }
}

}  // namespace

MachinePeaks probe_peaks(int threads) {
  current_target();  // settles the instruction set
  ThreadPool pool(threads);
  MachinePeaks peaks;
  peaks.f32_flops = best_rate(pool, 12, [](int64_t) { return float_peak_loop(300000); });
  peaks.bf16_flops = best_rate(pool, 12, [](int64_t) { return bf16_peak_loop(100000); });
  if (current_target() != Target::kAvx512Bf16) peaks.bf16_flops = peaks.f32_flops;
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<Pages> from, to;
  for (int i = 0; i < threads; ++i) from.emplace_back(kBytes), to.emplace_back(kBytes);
  peaks.copy_bytes = best_rate(pool, 8, [&](int64_t task) {
    std::memcpy(to[task].data(), from[task].data(), kBytes);
    return 2.0 * kBytes;
  });
  return peaks;
}

std::string bench_kernels(const BenchKernelOptions& options) {
  const MachinePeaks peaks = probe_peaks(options.threads);
  char head[500];
  std::snprintf(head, sizeof head,
                "%s, %d thread(s): peak %.0f GFLOP/s f32, %.0f GFLOP/s bf16, copy %.1f GB/s\n"
                "packed: median with the weight packed beforehand, as it is kept where many small "
                "products of an update read it\n"
                "peer: %s, median, its weight packed beforehand\n"
                "%-24s %-22s %-5s %13s %16s %7s %7s %7s %7s\n",
                name_of(current_target()), options.threads, peaks.f32_flops / 1e9,
                peaks.bf16_flops / 1e9, peaks.copy_bytes / 1e9, peer_name().c_str(), "kernel",
                "shape", "dtype", "median", "rate", "median", "best", "packed", "peer");
  std::string text = head;
  time_all(options, [&](const KernelTiming& t) { text += line_of(t, peaks); });
  return text + bench_fused(options);
}

}  // namespace moetrain::cpu
