// What the benchmarks measure with: a clock, memory in huge pages, contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/tensor.h"

namespace moetrain::cpu {

/// Seconds on the clock that fits: one thread is measured by its own CPU time, which neighbours on
/// a shared machine do not stretch; several by the wall.
double bench_now(int threads);

template <class Body>
double seconds_of(int threads, Body body) {
  const double start = bench_now(threads);
  body();
  return bench_now(threads) - start;
}

/// Memory in huge pages where there are any, like the arenas of training.
class Pages {
 public:
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Pages& operator=(Pages&&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

/// Fills a tensor with `integers`, or with normal numbers if there are none.
void fill(const Tensor& t, const std::vector<int32_t>& integers);

}  // namespace moetrain::cpu
