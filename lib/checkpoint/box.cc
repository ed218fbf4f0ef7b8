// Arithmetic of boxes and their text form.
#include "checkpoint/box.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/text.h"

namespace moetrain {

Box whole_box(const Shape& global) { return {std::vector<int64_t>(global.size(), 0), global}; }

int64_t volume(const Box& box) { return numel(box.extent); }

bool inside(const Box& box, const Shape& global) {
  if (box.begin.size() != global.size() || box.extent.size() != global.size()) return false;
  for (size_t d = 0; d < global.size(); ++d) {
    if (box.begin[d] < 0 || box.extent[d] < 0 || box.begin[d] > global[d] ||
        box.extent[d] > global[d] - box.begin[d]) {
      return false;
    }
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    both.begin.push_back(begin);
    both.extent.push_back(end - begin);
  }
  return both;
}

std::string to_string(const Box& box) {
  if (box.begin.empty()) return ".";
  std::string text;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    if (d > 0) text += ',';
    text += cat(box.begin[d], ":", box.begin[d] + box.extent[d]);
  }
  return text;
}

std::optional<Box> parse_box(std::string_view text) {
  Box box;
  if (text == ".") return box;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (true) {
    int64_t first = 0, last = 0;
    auto r = std::from_chars(p, end, first);
    if (r.ec != std::errc{} || r.ptr == end || *r.ptr != ':') return std::nullopt;
    r = std::from_chars(r.ptr + 1, end, last);
    if (r.ec != std::errc{} || first < 0 || last < first) return std::nullopt;
    box.begin.push_back(first);
    box.extent.push_back(last - first);
    if (r.ptr == end) return box;
    if (*r.ptr != ',') return std::nullopt;
    p = r.ptr + 1;
  }
}

std::string coverage_fault(const std::vector<Box>& boxes, const Shape& global) {
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const Box& box : boxes) {
    if (!inside(box, global)) return cat("box ", to_string(box), " is outside ", to_string(global));
  }
  const auto first = [&](size_t i) { return boxes[i].begin.empty() ? 0 : boxes[i].begin[0]; };
  const auto count = [&](size_t i) { return boxes[i].begin.empty() ? 1 : boxes[i].extent[0]; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first(a) < first(b); });
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t k = i + 1; k < order.size() && first(order[k]) < first(order[i]) + count(order[i]);
         ++k) {
      if (intersect(boxes[order[i]], boxes[order[k]])) {
        return cat("boxes ", to_string(boxes[order[i]]), " and ", to_string(boxes[order[k]]),
                   " overlap");
      }
    }
  }
  int64_t covered = 0;  // of disjoint boxes inside the tensor: cannot overflow
  for (const Box& box : boxes) covered += volume(box);
  if (covered != numel(global)) {
    return cat("boxes hold ", covered, " of ", numel(global), " elements");
  }
  return "";
}

}  // namespace moetrain
