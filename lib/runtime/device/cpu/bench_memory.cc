// Clock, memory and contents of the benchmarks.
#include "runtime/device/cpu/bench_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "base/random.h"

namespace moetrain::cpu {

double bench_now(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr size_t kHuge = size_t{2} << 20;

Pages::Pages(size_t bytes) : bytes_((bytes + kHuge) / kHuge * kHuge) {
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHuge, bytes_));
  MT_CHECK(data_ != nullptr, "no memory for ", bytes_, " bytes");
  madvise(data_, bytes_, MADV_HUGEPAGE);
  std::memset(data_, 0, bytes_);
}

Pages::~Pages() { std::free(data_); }

void fill(const Tensor& t, const std::vector<int32_t>& integers) {
  if (!integers.empty()) {
    std::memcpy(t.data, integers.data(), t.bytes());
    return;
  }
  const CounterRandom random(1, "bench");
  // Few different numbers are enough, and drawing them all would take longer than the kernels.
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (i < 1024)
      set_element(t, i, random.normal(i));
    else
      std::memcpy(t.as<char>() + i * size_of(t.dtype), t.as<char>() + i % 1024 * size_of(t.dtype),
                  size_of(t.dtype));
  }
}

}  // namespace moetrain::cpu
