// Box: an axis-aligned part of a global tensor.
#pragma once

#include <cstdint>
#include <vector>

namespace moetrain {

/// Per dim the first index and the number of indices. A scalar has no dims.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;

  bool operator==(const Box&) const = default;
};

}  // namespace moetrain
