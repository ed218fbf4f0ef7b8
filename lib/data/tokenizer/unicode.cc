// Set arithmetic on sorted ranges.
#include "data/tokenizer/unicode.h"

#include <algorithm>

namespace moetrain {
namespace {

constexpr CodeRange kSurrogates{0xD800, 0xDFFF};
constexpr uint32_t kLast = 0x10FFFF;

}  // namespace

std::vector<CodeRange> difference(std::span<const CodeRange> a, std::span<const CodeRange> b) {
  std::vector<CodeRange> out;
  size_t j = 0;
  for (CodeRange range : a) {
    while (j < b.size() && b[j].last < range.first) ++j;
    for (size_t k = j; k < b.size() && b[k].first <= range.last; ++k) {
      if (b[k].first > range.first) out.push_back({range.first, b[k].first - 1});
      range.first = b[k].last + 1;
      if (range.first > range.last) break;
    }
    if (range.first <= range.last) out.push_back(range);
  }
  return out;
}

std::vector<CodeRange> complement(std::span<const CodeRange> ranges) {
  const CodeRange all[] = {{0, kSurrogates.first - 1}, {kSurrogates.last + 1, kLast}};
  return difference(all, ranges);
}

bool contains(std::span<const CodeRange> ranges, uint32_t code_point) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                   [](uint32_t c, const CodeRange& r) { return c < r.first; });
  return it != ranges.begin() && code_point <= std::prev(it)->last;
}

}  // namespace moetrain
