// Tensor: a typed, shaped, contiguous view of memory that somebody else owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace moetrain {

/// Sizes of the dims, outermost first. A scalar has no dims.
using Shape = std::vector<int64_t>;

/// Product of all dims (1 for a scalar).
inline int64_t numel(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

/// "[2, 3]".
std::string to_string(const Shape& shape);

/// A contiguous, row-major view; owns nothing.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t numel() const { return moetrain::numel(shape); }
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  /// All dims but the last multiplied: the rows of a matrix view.
  int64_t rows() const { return shape.empty() ? 1 : numel() / (shape.back() ? shape.back() : 1); }
  /// The last dim.
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Element `i` converted to double, whatever the dtype.
double get_element(const Tensor& tensor, int64_t i);
/// Stores `value` in element `i`, rounded to the dtype.
void set_element(const Tensor& tensor, int64_t i, double value);

}  // namespace moetrain
