// Streams: runs of a buffer laid end to end, cut into windows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moetrain::comm {

/// A run of elements or bytes inside a buffer.
struct Range {
  int64_t begin = 0, size = 0;
};

inline int64_t total_of(const std::vector<Range>& runs) {
  int64_t total = 0;
  for (const Range& run : runs) total += run.size;
  return total;
}

/// Calls use(run, offset in the run, offset in the window, length) for every piece of the runs, laid
/// end to end, that falls into [begin, end). Runs {[100,3), [7,2)} and window [2, 5) give
/// ([100,3), 2, 0, 1) and ([7,2), 0, 1, 2).
template <class Use>
void walk(const std::vector<Range>& runs, int64_t begin, int64_t end, Use use) {
  int64_t at = 0;
  for (const Range& run : runs) {
    const int64_t low = std::max(begin, at), high = std::min(end, at + run.size);
    if (low < high) use(run, low - at, low - begin, high - low);
    at += run.size;
  }
}

}  // namespace moetrain::comm
