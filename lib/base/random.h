// Counter-based random numbers: the value depends only on (seed, name, element), never on layout or order.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moetrain {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four
/// 32-bit words for a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream of numbers addressed by element index.
class CounterRandom {
 public:
  CounterRandom(uint64_t seed, std::string_view name);
  /// 32 uniform bits of element `i`.
  uint32_t bits(uint64_t i) const;
  /// Uniform in [0, 1).
  double uniform(uint64_t i) const;
  /// Standard normal (Box-Muller) of element `i`.
  double normal(uint64_t i) const;

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

/// FNV-1a, 64 bit: stable across machines, used to turn names into keys and plans into hashes.
uint64_t hash_bytes(std::string_view bytes, uint64_t start = 0xcbf29ce484222325ull);

}  // namespace moetrain
