// Element access by run-time dtype, for reference loops and tests.
#include "base/tensor.h"

#include "base/text.h"

namespace moetrain {

std::string to_string(const Shape& shape) { return "[" + join(shape, ", ") + "]"; }

double get_element(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::kF32: return t.as<const float>()[i];
    case DType::kBF16: return bf16_to_float(t.as<const uint16_t>()[i]);
    case DType::kF64: return t.as<const double>()[i];
    case DType::kI32: return t.as<const int32_t>()[i];
    case DType::kI64: return static_cast<double>(t.as<const int64_t>()[i]);
    case DType::kU8: return t.as<const uint8_t>()[i];
  }
  return 0;
}

void set_element(const Tensor& t, int64_t i, double value) {
  switch (t.dtype) {
    case DType::kF32: t.as<float>()[i] = static_cast<float>(value); break;
    case DType::kBF16: t.as<uint16_t>()[i] = float_to_bf16(static_cast<float>(value)); break;
    case DType::kF64: t.as<double>()[i] = value; break;
    case DType::kI32: t.as<int32_t>()[i] = static_cast<int32_t>(value); break;
    case DType::kI64: t.as<int64_t>()[i] = static_cast<int64_t>(value); break;
    case DType::kU8: t.as<uint8_t>()[i] = static_cast<uint8_t>(value); break;
  }
}

}  // namespace moetrain
