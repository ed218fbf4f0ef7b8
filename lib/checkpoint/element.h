// Element types that files may hold (more than tensors in memory know) and exact conversions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace moetrain {

/// Element type in a safetensors file.
enum class FileType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

/// "F32", "BF16", "F8_E4M3", ...
const char* name_of(FileType type);
/// Bytes of one element.
size_t size_of(FileType type);
/// The type with that name, or nothing.
std::optional<FileType> file_type_named(std::string_view name);

/// How a tensor in memory is stored.
FileType file_type_of(DType type);
/// The memory type called `name` ("f32", "bf16", ...), or nothing.
std::optional<DType> dtype_named(std::string_view name);

/// Can convert_elements go from `from` to `to`? Same type, float to float, and I32 to I64.
bool can_convert(FileType from, DType to);
/// Converts `n` elements; neither pointer need be aligned. Narrowing rounds to nearest even.
void convert_elements(FileType from, const void* in, DType to, void* out, int64_t n);

/// IEEE half precision bits to float, exact.
float f16_to_float(uint16_t bits);
/// 8-bit float with 4 exponent and 3 fraction bits (bias 7, no infinities) to float, exact.
float f8_e4m3_to_float(uint8_t bits);
/// 8-bit float with 5 exponent and 2 fraction bits to float, exact.
float f8_e5m2_to_float(uint8_t bits);

/// Weights as DeepSeek publishes them: e4m3 elements of `[rows, cols]`, one fp32 factor per
/// `block` x `block` tile in `scale_inv` `[ceil(rows/block), ceil(cols/block)]`; element = code *
/// factor.
void dequantize_f8_blocks(const uint8_t* codes, const float* scale_inv, int64_t rows, int64_t cols,
                          int64_t block, float* out);

}  // namespace moetrain
