// Conversions between the element types of files and of memory.
#include "checkpoint/element.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace moetrain {
namespace {

struct TypeRow {
  FileType type;
  const char* name;
  size_t size;
};

constexpr TypeRow kTypes[] = {
    {FileType::kF64, "F64", 8},        {FileType::kF32, "F32", 4},
    {FileType::kF16, "F16", 2},        {FileType::kBF16, "BF16", 2},
    {FileType::kF8E4M3, "F8_E4M3", 1}, {FileType::kF8E5M2, "F8_E5M2", 1},
    {FileType::kI64, "I64", 8},        {FileType::kI32, "I32", 4},
    {FileType::kI16, "I16", 2},        {FileType::kI8, "I8", 1},
    {FileType::kU64, "U64", 8},        {FileType::kU32, "U32", 4},
    {FileType::kU16, "U16", 2},        {FileType::kU8, "U8", 1},
    {FileType::kBool, "BOOL", 1},
};

const TypeRow& row_of(FileType type) { return kTypes[static_cast<size_t>(type)]; }

bool is_float(FileType type) { return type <= FileType::kF8E5M2; }

template <class T>
T load(const void* in, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(in) + i * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void store(void* out, int64_t i, T value) {
  std::memcpy(static_cast<char*>(out) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/// A float with `exponent` and `fraction` bits to fp32; all finite codes are exact in fp32.
float small_float(uint32_t bits, int exponent, int fraction) {
  const int bias = (1 << (exponent - 1)) - 1;
  const uint32_t e = (bits >> fraction) & ((1u << exponent) - 1);
  const uint32_t f = bits & ((1u << fraction) - 1);
  const float sign = (bits >> (exponent + fraction)) & 1 ? -1.0f : 1.0f;
  if (e == 0) return sign * std::ldexp(static_cast<float>(f), 1 - bias - fraction);
  return sign * std::ldexp(static_cast<float>((1u << fraction) | f),
                           static_cast<int>(e) - bias - fraction);
}

std::array<float, 256> make_f8_table() {
  std::array<float, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = (i & 0x7f) == 0x7f ? std::nanf("") : small_float(i, 4, 3);
  }
  return table;
}

double load_float(FileType type, const void* in, int64_t i) {
  switch (type) {
    case FileType::kF64:
      return load<double>(in, i);
    case FileType::kF32:
      return load<float>(in, i);
    case FileType::kF16:
      return f16_to_float(load<uint16_t>(in, i));
    case FileType::kBF16:
      return bf16_to_float(load<uint16_t>(in, i));
    case FileType::kF8E4M3:
      return f8_e4m3_to_float(load<uint8_t>(in, i));
    case FileType::kF8E5M2:
      return f8_e5m2_to_float(load<uint8_t>(in, i));
    default:
      break;
  }
  MT_CHECK(false, "not a float type: ", name_of(type));
}

/// double to bf16 with one rounding: going through float first would round twice.
uint16_t double_to_bf16(double value) {
  float f = static_cast<float>(value);
  if (std::isfinite(f) && static_cast<double>(f) != value) {
    // Round to odd: a sticky last bit keeps the second rounding honest.
    if (std::fabs(static_cast<double>(f)) > std::fabs(value)) f = std::nextafter(f, 0.0f);
    f = std::bit_cast<float>(std::bit_cast<uint32_t>(f) | 1u);
  }
  return float_to_bf16(f);
}

}  // namespace

const char* name_of(FileType type) { return row_of(type).name; }

size_t size_of(FileType type) { return row_of(type).size; }

std::optional<FileType> file_type_named(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

FileType file_type_of(DType type) {
  switch (type) {
    case DType::kF32:
      return FileType::kF32;
    case DType::kBF16:
      return FileType::kBF16;
    case DType::kF64:
      return FileType::kF64;
    case DType::kI32:
      return FileType::kI32;
    case DType::kI64:
      return FileType::kI64;
    case DType::kU8:
      return FileType::kU8;
  }
  MT_CHECK(false, "unknown dtype ", static_cast<int>(type));
}

std::optional<DType> dtype_named(std::string_view name) {
  for (int t = 0; t <= static_cast<int>(DType::kU8); ++t) {
    if (name == name_of(static_cast<DType>(t))) return static_cast<DType>(t);
  }
  return std::nullopt;
}

bool can_convert(FileType from, DType to) {
  return from == file_type_of(to) || (is_float(from) && moetrain::is_float(to)) ||
         (from == FileType::kI32 && to == DType::kI64);
}

void convert_elements(FileType from, const void* in, DType to, void* out, int64_t n) {
  MT_CHECK(can_convert(from, to), name_of(from), " to ", name_of(to));
  if (n == 0) return;
  if (from == file_type_of(to)) {
    std::memcpy(out, in, static_cast<size_t>(n) * size_of(to));
    return;
  }
  // The two conversions that export, import and resuming in another precision are made of.
  if (from == FileType::kBF16 && to == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) store<float>(out, i, bf16_to_float(load<uint16_t>(in, i)));
    return;
  }
  if (from == FileType::kF32 && to == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) store<uint16_t>(out, i, float_to_bf16(load<float>(in, i)));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (to == DType::kI64) {
      store<int64_t>(out, i, load<int32_t>(in, i));
    } else if (to == DType::kF32) {
      store<float>(out, i, static_cast<float>(load_float(from, in, i)));
    } else if (to == DType::kF64) {
      store<double>(out, i, load_float(from, in, i));
    } else {
      store<uint16_t>(out, i, double_to_bf16(load_float(from, in, i)));
    }
  }
}

float f16_to_float(uint16_t bits) {
  if ((bits & 0x7c00) != 0x7c00) return small_float(bits, 5, 10);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  return std::bit_cast<float>(sign | 0x7f800000u | (static_cast<uint32_t>(bits & 0x3ff) << 13));
}

float f8_e4m3_to_float(uint8_t bits) {
  static const std::array<float, 256> table = make_f8_table();
  return table[bits];
}

float f8_e5m2_to_float(uint8_t bits) { return f16_to_float(static_cast<uint16_t>(bits << 8)); }

void dequantize_f8_blocks(const uint8_t* codes, const float* scale_inv, int64_t rows, int64_t cols,
                          int64_t block, float* out) {
  const int64_t tiles = (cols + block - 1) / block;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      out[r * cols + c] =
          f8_e4m3_to_float(codes[r * cols + c]) * scale_inv[(r / block) * tiles + c / block];
    }
  }
}

}  // namespace moetrain
