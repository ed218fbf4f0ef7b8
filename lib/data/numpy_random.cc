// Mersenne Twister (Matsumoto and Nishimura 1998) with NumPy's legacy seeding and bounded draws.
#include "data/numpy_random.h"

#include <bit>

namespace moetrain {

NumpyRandom::NumpyRandom(uint32_t seed) {
  for (size_t i = 0; i < state_.size(); ++i) {
    state_[i] = seed;
    seed = 1812433253u * (seed ^ (seed >> 30)) + static_cast<uint32_t>(i) + 1;
  }
}

void NumpyRandom::refill() {
  const size_t n = state_.size();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % n] & 0x7fffffffu);
    state_[i] = state_[(i + 397) % n] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
  }
  at_ = 0;
}

uint32_t NumpyRandom::next() {
  if (at_ == state_.size()) refill();
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t NumpyRandom::interval(uint64_t max) {
  if (max == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
  for (;;) {
    uint64_t value = next();
    if (max > 0xffffffffu) value = (value << 32) | next();  // high word first
    value &= mask;
    if (value <= max) return value;
  }
}

}  // namespace moetrain
