// Greedy blending; compiled without fused multiply-add because the last bit decides ties.
#include "data/blend.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace moetrain {
namespace {

BlendIndex draw(std::span<const double> weights, std::span<const int64_t> sizes, int64_t samples) {
  MT_CHECK(!weights.empty() && weights.size() <= 32767, weights.size(), " sets");
  BlendIndex out;
  out.set.resize(static_cast<size_t>(samples));
  out.sample.resize(static_cast<size_t>(samples));
  out.taken.assign(weights.size(), 0);
  for (int64_t i = 0; i < samples; ++i) {
    const double scale = static_cast<double>(i > 1 ? i : 1);
    double most = -std::numeric_limits<double>::infinity();
    size_t chosen = weights.size();
    for (size_t d = 0; d < weights.size(); ++d) {
      if (!sizes.empty() && out.taken[d] == sizes[d]) continue;
      const double behind = weights[d] * scale - static_cast<double>(out.taken[d]);
      if (behind > most) {
        most = behind;
        chosen = d;
      }
    }
    MT_CHECK(chosen < weights.size(), "no set left for sample ", i);
    out.set[static_cast<size_t>(i)] = static_cast<int16_t>(chosen);
    out.sample[static_cast<size_t>(i)] = out.taken[chosen]++;
  }
  return out;
}

}  // namespace

BlendIndex blend(std::span<const double> weights, int64_t samples) {
  return draw(weights, {}, samples);
}

BlendIndex blend_exhaustive(std::span<const int64_t> sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (int64_t n : sizes) weights.push_back(static_cast<double>(n) / static_cast<double>(total));
  return draw(weights, sizes, total);
}

int64_t blend_request(int64_t samples, double weight) {
  const double exact = std::ceil(static_cast<double>(samples) * weight);
  return static_cast<int64_t>(std::ceil(exact * (1 + 0.005)));
}

}  // namespace moetrain
