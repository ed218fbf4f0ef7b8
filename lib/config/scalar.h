// Spellings of numbers, truth values, sizes and durations; every rule of them is here.
#pragma once

#include <cstdint>
#include <string>

namespace moetrain {

/// Result of reading a spelling: empty `fault` is success, else why it was refused and what to
/// write.
template <class T>
struct Read {
  T value{};
  std::string fault;
};

/// What suffix may follow a number.
enum class Suffix {
  kCount,    ///< k M B G T: thousand, million, billion (B and G), trillion
  kBytes,    ///< B, kB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024)
  kSeconds,  ///< s m h d, and sums like 1h30m
};

/// Accepted: 12, +2, -3, 1_000 (between digits), 1e3, 2.0 (whole values), 10k.
/// Refused: 010 (octal elsewhere), 0x10, 0o17, 2.5, inf, nan, 1__0, anything beyond 64 bits.
Read<int64_t> read_integer(const std::string& text, Suffix suffix = Suffix::kCount);

/// Accepted also: 1e-4, 1E-4, .5, 1., 0.25. Refused: inf, nan, overflow, and what underflows to
/// zero.
Read<double> read_real(const std::string& text, Suffix suffix = Suffix::kCount);

/// true, True, TRUE, false, False, FALSE and nothing else.
Read<bool> read_bool(const std::string& text);

/// The shortest spelling that reads back as the same double.
std::string real_text(double value);

}  // namespace moetrain
