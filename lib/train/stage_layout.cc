// Two passes of dynamic programming over (chunks, layers): the least possible maximum, then the least squares.
#include "train/stage_layout.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"

namespace moetrain {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kEqual = 1e-9;  // relative; sums of the same costs in another order differ by rounding

/// best[c][n]: the value of the first n layers in c chunks; from[c][n]: layers before the last of them.
struct Table {
  std::vector<std::vector<double>> best;
  std::vector<std::vector<int>> from;
};

Table fill(int layers, int chunks, bool empty_end, const std::function<double(int, int, int)>& run_cost,
           const std::function<double(double, double)>& join) {
  Table t{std::vector(chunks + 1, std::vector<double>(layers + 1, kNever)),
          std::vector(chunks + 1, std::vector<int>(layers + 1, 0))};
  t.best[0][0] = 0;
  for (int c = 1; c <= chunks; ++c) {
    const int least = c == chunks && empty_end ? 0 : 1;  // layers of the run
    for (int n = c - 1 + least; n <= layers; ++n) {
      for (int begin = n - least; begin >= c - 1; --begin) {  // short last runs first: they win ties
        const double value = join(t.best[c - 1][begin], run_cost(c, begin, n));
        if (value < t.best[c][n] * (1 - kEqual) || t.best[c][n] == kNever) {
          t.best[c][n] = value;
          t.from[c][n] = begin;
        }
      }
    }
  }
  return t;
}

}  // namespace

std::vector<int64_t> balanced_layers(const std::vector<double>& costs, double lead, double tail,
                                     int chunks) {
  const int layers = static_cast<int>(costs.size());
  MT_CHECK(chunks >= 1 && layers >= chunks, layers, " layers in ", chunks, " chunks");
  std::vector<double> before(layers + 1, 0);
  for (int i = 0; i < layers; ++i) before[i + 1] = before[i] + costs[i];
  const auto sum = [&](int c, int begin, int end) {
    return before[end] - before[begin] + (c == 1 ? lead : 0) + (c == chunks ? tail : 0);
  };
  const bool empty_end = chunks > 1 && tail > 0;
  const double most = fill(layers, chunks, empty_end, sum, [](double a, double b) { return std::max(a, b); })
                          .best[chunks][layers];
  const Table even = fill(
      layers, chunks, empty_end,
      [&](int c, int begin, int end) {
        const double s = sum(c, begin, end);
        return s <= most * (1 + kEqual) ? s * s : kNever;
      },
      [](double a, double b) { return a + b; });
  std::vector<int64_t> counts(chunks);
  for (int c = chunks, end = layers; c > 0; end = even.from[c--][end]) {
    counts[c - 1] = end - even.from[c][end];
  }
  return counts;
}

}  // namespace moetrain
