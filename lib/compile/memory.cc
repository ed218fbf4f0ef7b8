// Static memory planning: offsets for buffers whose life times are known.
#include <algorithm>
#include <numeric>

#include "compile/lower.h"

namespace moetrain {

namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int64_t place_intervals(std::vector<Interval>& intervals) {
  std::vector<int> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return intervals[a].bytes > intervals[b].bytes;
  });
  // Buckets of time keep the search for overlapping neighbours short on long tapes.
  int last = 0;
  for (const Interval& i : intervals) last = std::max(last, i.end);
  const int bucket_width = std::max(1, last / 256 + 1);
  std::vector<std::vector<int>> buckets(last / bucket_width + 1);
  std::vector<int> seen(intervals.size(), -1);
  int64_t size = 0;
  std::vector<int> alive;
  for (int index : order) {
    Interval& mine = intervals[index];
    alive.clear();
    for (int b = mine.begin / bucket_width; b <= mine.end / bucket_width; ++b) {
      for (int other : buckets[b]) {
        const Interval& o = intervals[other];
        if (seen[other] == index || o.end < mine.begin || mine.end < o.begin) continue;
        seen[other] = index;
        alive.push_back(other);
      }
    }
    std::sort(alive.begin(), alive.end(), [&](int a, int b) {
      return intervals[a].offset < intervals[b].offset;
    });
    const int64_t need = aligned(mine.bytes);
    int64_t at = 0, best = -1, best_gap = 0;
    for (int other : alive) {
      const Interval& o = intervals[other];
      const int64_t gap = o.offset - at;
      if (gap >= need && (best < 0 || gap < best_gap)) {
        best = at;
        best_gap = gap;
      }
      at = std::max(at, o.offset + aligned(o.bytes));
    }
    mine.offset = best >= 0 ? best : at;
    size = std::max(size, mine.offset + need);
    for (int b = mine.begin / bucket_width; b <= mine.end / bucket_width; ++b) {
      buckets[b].push_back(index);
    }
  }
  return size;
}

}  // namespace moetrain
