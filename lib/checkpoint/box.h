// Boxes: axis-aligned parts of a named global tensor, the unit in which state is owned and stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/tensor.h"

namespace moetrain {

/// All of a tensor.
Box whole_box(const Shape& global);
/// Number of elements.
int64_t volume(const Box& box);
/// Same number of dims, nothing negative, inside the tensor.
bool inside(const Box& box, const Shape& global);
/// The common part, or nothing if that is empty.
std::optional<Box> intersect(const Box& a, const Box& b);

/// "0:16,0:7168" (first:last+1 per dim), "." for a scalar.
std::string to_string(const Box& box);
/// The reverse of to_string; nothing if the text is malformed.
std::optional<Box> parse_box(std::string_view text);

/// Do the boxes cover the tensor exactly once? "" if so, else what is wrong ("overlap ...").
std::string coverage_fault(const std::vector<Box>& boxes, const Shape& global);

/// Calls copy(source element, target element, count) for every contiguous run of `part`, where
/// `source` and `target` are row-major arrays holding those boxes and both contain `part`.
template <class Copy>
void for_each_run(const Box& part, const Box& source, const Box& target, const Copy& copy) {
  const size_t dims = part.begin.size();
  // Trailing dims that are whole in both arrays join the run.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= part.extent[inner];
    if (part.extent[inner] != source.extent[inner] || part.extent[inner] != target.extent[inner]) {
      break;
    }
  }
  if (volume(part) == 0) return;
  std::vector<int64_t> at(inner, 0);
  while (true) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t i = part.begin[d] + (d < inner ? at[d] : 0);
      from = from * source.extent[d] + i - source.begin[d];
      to = to * target.extent[d] + i - target.begin[d];
    }
    copy(from, to, run);
    size_t d = inner;
    while (d > 0 && ++at[d - 1] == part.extent[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace moetrain
