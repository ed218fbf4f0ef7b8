// NumPy's legacy RandomState: its shuffle decides the published order of samples, so it is kept
// bit-exact.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace moetrain {

/// MT19937 seeded like `numpy.random.RandomState(seed)` (Knuth's init_genrand), 32-bit seeds.
/// Example: seed 1234, shuffle of 0..9 twice gives 7 2 9 1 0 8 4 5 6 3, then 7 3 5 1 4 8 0 2 6 9.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);

  uint32_t next();
  /// Uniform in [0, max] by masked rejection, NumPy's legacy `random_interval`.
  uint64_t interval(uint64_t max);

  /// Fisher-Yates from the end, as `RandomState.shuffle` does on a one-dimensional array.
  template <class T>
  void shuffle(std::span<T> items) {
    for (uint64_t i = items.size(); i-- > 1;) std::swap(items[i], items[interval(i)]);
  }

 private:
  void refill();

  std::array<uint32_t, 624> state_;
  size_t at_ = 624;
};

}  // namespace moetrain
