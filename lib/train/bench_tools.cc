// What the measurements share.
#include "train/bench_tools.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace moetrain {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double timed_together(Fabric& fabric, int repeats, const std::function<void()>& call) {
  call();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    fabric.barrier();
    const double begin = wall_seconds();
    call();
    times.push_back(wall_seconds() - begin);
  }
  // one exchange for all repeats keeps the host's own traffic out of the measurement
  const std::string mine(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double));
  for (const std::string& other : fabric.gather(mine)) {
    for (int i = 0; i < repeats; ++i) {
      double seconds;
      std::memcpy(&seconds, other.data() + i * sizeof(double), sizeof seconds);
      times[i] = std::max(times[i], seconds);
    }
  }
  return median(times);
}

std::vector<double> gather_numbers(Fabric& fabric, double mine) {
  std::vector<double> out;
  for (const std::string& text : fabric.gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    double value;
    std::memcpy(&value, text.data(), sizeof value);
    out.push_back(value);
  }
  return out;
}

int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

int neighbours_of(const Fabric& fabric) {
  int count = 0;
  for (int r = 0; r < fabric.size(); ++r) {
    count += fabric.node_of(r) == fabric.node_of(fabric.rank());
  }
  return std::max(1, count);
}

int default_threads(const Fabric& fabric) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / neighbours_of(fabric));
}

}  // namespace moetrain
