// Unicode classes as the reference tokenizers know them, and arithmetic on sets of code points.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moetrain {

/// Inclusive.
struct CodeRange {
  uint32_t first = 0, last = 0;
};

/// Classes 'L', 'M', 'N', 'P', 'S' and 's' (white space), sorted and disjoint; empty for other
/// names.
std::span<const CodeRange> unicode_class(char name);

/// All code points but these and the surrogates, which no UTF-8 text holds.
std::vector<CodeRange> complement(std::span<const CodeRange> ranges);
/// Those of `a` that are not in `b`.
std::vector<CodeRange> difference(std::span<const CodeRange> a, std::span<const CodeRange> b);
bool contains(std::span<const CodeRange> ranges, uint32_t code_point);

}  // namespace moetrain
