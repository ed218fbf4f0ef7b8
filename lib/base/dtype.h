// Element types of tensors and the bfloat16 conversions everything shares.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace moetrain {

/// Element type of a tensor. Values are stored in files: append only.
enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF64 = 2, kI32 = 3, kI64 = 4, kU8 = 5 };

/// Bytes of one element.
constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16: return 2;
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kU8: return 1;
  }
  return 0;
}

/// Short lower-case name: f32, bf16, f64, i32, i64, u8.
constexpr const char* name_of(DType t) {
  constexpr const char* kNames[] = {"f32", "bf16", "f64", "i32", "i64", "u8"};
  return kNames[static_cast<int>(t)];
}

constexpr bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kBF16 || t == DType::kF64;
}

/// bfloat16 bits to float, exact.
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// float to bfloat16 bits, round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

}  // namespace moetrain
