// Philox and the streams built on it.
#include "base/random.h"

#include <cmath>
#include <numbers>

namespace moetrain {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

CounterRandom::CounterRandom(uint64_t seed, std::string_view name)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_(hash_bytes(name)) {}

uint32_t CounterRandom::bits(uint64_t i) const {
  return philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                 static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                key_)[0];
}

double CounterRandom::uniform(uint64_t i) const { return bits(i) * 0x1p-32; }

double CounterRandom::normal(uint64_t i) const {
  const auto r = philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                        key_);
  const double u = (r[0] + 0.5) * 0x1p-32;
  const double v = r[1] * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

uint64_t hash_bytes(std::string_view bytes, uint64_t hash) {
  for (unsigned char c : bytes) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

}  // namespace moetrain
