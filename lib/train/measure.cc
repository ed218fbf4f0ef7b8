// Timing matrix products, copies and collectives.
#include "train/measure.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ops/matmul.h"
#include "runtime/device/device.h"

namespace moetrain {

namespace {

template <class... Args>
std::string format(const char* text, Args... args) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, text, args...);
  return buffer;
}

/// Median seconds of one call, measured for about `budget` seconds after a warm-up.
double median_seconds(double budget, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || std::chrono::duration<double>(Clock::now() - start).count() < budget) {
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

class Bench {
 public:
  Bench(Fabric& fabric, const MeasureOptions& options) : fabric_(fabric), options_(options) {
    int neighbours = 0;
    for (int r = 0; r < fabric.size(); ++r) {
      neighbours += fabric.node_of(r) == fabric.node_of(fabric.rank());
    }
    per_node_ = fabric.broadcast(std::to_string(neighbours));
    CpuOptions cpu;
    cpu.threads = std::max(
        1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, neighbours));
    device_ = make_cpu_device(cpu);
    result_.machine.name = cat("measured: ", device_->describe(), ", ", fabric.size(), " ranks");
    result_.machine.ranks_per_node = std::stoll(per_node_);
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    result_.machine.memory = static_cast<double>(pages) * static_cast<double>(page) /
                             static_cast<double>(result_.machine.ranks_per_node);
    say(result_.machine.name + "\n");
  }

  MachineMeasurement run() {
    if (options_.kernels) {
      result_.machine.fp32_flops = matmuls(DType::kF32);
      result_.machine.bf16_flops = matmuls(DType::kBF16);
      memory();
    }
    if (options_.collectives && fabric_.size() > 1) collectives();
    return std::move(result_);
  }

 private:
  void say(const std::string& line) { result_.text += line; }

  /// The slowest rank's time, the same on every rank.
  double slowest(double seconds) {
    return static_cast<double>(fabric_.max_over_ranks(static_cast<int64_t>(seconds * 1e12))) *
           1e-12;
  }

  double matmuls(DType dtype) {
    double best = 0;
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{512, 1024, 1024},
                                  {1024, 2048, 1024},
                                  {64, 1024, 1024},
                                  {8, 1024, 1024}}) {
      const double seconds = slowest(matmul_seconds(dtype, m, n, k));
      const double flops = 2.0 * static_cast<double>(m * n * k) / seconds;
      if (m >= 512) best = std::max(best, flops);
      say(format("matmul %-4s %5lld x %5lld x %5lld %10.1f GFLOP/s\n", name_of(dtype),
                 static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k),
                 flops / 1e9));
    }
    return best;
  }

  double matmul_seconds(DType dtype, int64_t m, int64_t n, int64_t k) {
    const std::vector<Type> in = {{dtype, {1, m, k}}, {dtype, {n, k}}};
    const Attrs attrs;
    const std::vector<Type> out = ops::kMatmul.infer(attrs, in);
    std::vector<Tensor> inputs, outputs;
    std::vector<std::byte*> memory;
    auto tensor = [&](const Type& type) {
      const size_t bytes = static_cast<size_t>(numel(type.shape)) * size_of(type.dtype);
      memory.push_back(device_->allocate(bytes, "bench"));
      std::memset(memory.back(), 0x3c, bytes);  // small positive numbers in either type
      return Tensor{memory.back(), type.dtype, type.shape};
    };
    for (const Type& t : in) inputs.push_back(tensor(t));
    for (const Type& t : out) outputs.push_back(tensor(t));
    const KernelChoice kernel = device_->choose(ops::kMatmul, attrs, in, out);
    std::byte* scratch = device_->allocate(std::max<size_t>(64, kernel.workspace_bytes), "bench");
    memory.push_back(scratch);
    Lane& lane = device_->lane(0);
    const double seconds = median_seconds(options_.seconds, [&] {
      device_->launch(kernel, ops::kMatmul, attrs, inputs, outputs, scratch, lane);
      lane.synchronize();
    });
    for (std::byte* p : memory) device_->release(p);
    return seconds;
  }

  void memory() {
    constexpr size_t kBytes = 64 << 20;
    std::byte *from = device_->allocate(kBytes, "bench"), *to = device_->allocate(kBytes, "bench");
    std::memset(from, 1, kBytes);
    std::memset(to, 1, kBytes);
    Lane& lane = device_->lane(0);
    const double seconds = slowest(median_seconds(options_.seconds, [&] {
      device_->copy(to, from, kBytes, lane);
      lane.synchronize();
    }));
    device_->release(from);
    device_->release(to);
    result_.machine.memory_bandwidth = 2.0 * kBytes / seconds;
    say(format("copy of 64 MiB %28.1f GB/s\n", result_.machine.memory_bandwidth / 1e9));
  }

  void collectives() {
    std::vector<int> all(fabric_.size());
    std::iota(all.begin(), all.end(), 0);
    const auto group = fabric_.make_group(all, "bench");
    Lane& lane = device_->lane(0);
    bool several_nodes = false;
    for (int r : all) several_nodes |= fabric_.node_of(r) != fabric_.node_of(0);
    double latency = 0, bandwidth = 0;
    for (int64_t bytes = 64; bytes <= (8 << 20); bytes *= 32) {
      std::vector<std::byte> send(bytes), recv(bytes * fabric_.size()), to(bytes);
      // a fixed number of calls: every rank must issue the same
      using Clock = std::chrono::steady_clock;
      constexpr int kCalls = 10;
      auto timed = [&](const char* name, double received, const std::function<void()>& call) {
        call();
        lane.synchronize();
        fabric_.barrier();
        const auto begin = Clock::now();
        for (int i = 0; i < kCalls; ++i) call();
        lane.synchronize();
        const double seconds =
            slowest(std::chrono::duration<double>(Clock::now() - begin).count() / kCalls);
        say(format("%-12s %9lld bytes %12.1f us %8.2f GB/s\n", name, static_cast<long long>(bytes),
                   seconds * 1e6, received / seconds / 1e9));
        return seconds;
      };
      const double others = static_cast<double>(bytes * (fabric_.size() - 1));
      const double seconds = timed(
          "all_gather", others, [&] { group->all_gather(send.data(), recv.data(), bytes, lane); });
      timed("all_to_all", others / fabric_.size(),
            [&] { group->all_to_all(send.data(), to.data(), bytes / fabric_.size(), lane); });
      if (bytes == 64) latency = seconds / (fabric_.size() - 1);
      bandwidth = std::max(bandwidth, others / seconds);
    }
    Machine& m = result_.machine;
    (several_nodes ? m.inter_latency : m.intra_latency) = std::max(latency, 1e-9);
    (several_nodes ? m.inter_bandwidth : m.intra_bandwidth) = bandwidth;
  }

  Fabric& fabric_;
  const MeasureOptions options_;
  std::string per_node_;
  std::unique_ptr<Device> device_;
  MachineMeasurement result_;
};

}  // namespace

MachineMeasurement measure_machine(Fabric& fabric, const MeasureOptions& options) {
  return Bench(fabric, options).run();
}

}  // namespace moetrain
