// Greedy blending; compiled without fused multiply-add because the last bit decides ties.
#include "data/blend.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace moetrain {

Blend Blend::greedy(std::vector<double> weights, int64_t samples) {
  Blend blend;
  blend.weights_ = std::move(weights);
  blend.samples_ = samples;
  blend.build();
  return blend;
}

Blend Blend::exhaustive(std::vector<int64_t> sizes) {
  Blend blend;
  blend.sizes_ = std::move(sizes);
  blend.samples_ = std::accumulate(blend.sizes_.begin(), blend.sizes_.end(), int64_t{0});
  for (int64_t n : blend.sizes_) {
    blend.weights_.push_back(static_cast<double>(n) / static_cast<double>(blend.samples_));
  }
  blend.build();
  return blend;
}

void Blend::build() {
  MT_CHECK(!weights_.empty() && weights_.size() <= 32767, weights_.size(), " sets");
  std::vector<int64_t> taken(weights_.size(), 0);
  for (int64_t i = 0; i <= samples_; ++i) {
    if (i % kStride == 0) counts_.insert(counts_.end(), taken.begin(), taken.end());
    if (i < samples_) step(i, taken);
  }
}

Blend::Place Blend::step(int64_t i, std::span<int64_t> taken) const {
  const double scale = static_cast<double>(i > 1 ? i : 1);
  double most = -std::numeric_limits<double>::infinity();
  size_t chosen = weights_.size();
  for (size_t d = 0; d < weights_.size(); ++d) {
    if (!sizes_.empty() && taken[d] == sizes_[d]) continue;
    const double behind = weights_[d] * scale - static_cast<double>(taken[d]);
    if (behind > most) {
      most = behind;
      chosen = d;
    }
  }
  MT_CHECK(chosen < weights_.size(), "no set left for sample ", i);
  return {static_cast<int64_t>(chosen), taken[chosen]++};
}

std::span<const int64_t> Blend::counts_at(int64_t block) const {
  const size_t sets = weights_.size();
  return std::span(counts_).subspan(static_cast<size_t>(block) * sets, sets);
}

std::vector<int64_t> Blend::taken(int64_t i) const {
  MT_CHECK(i >= 0 && i <= samples_, i, " of ", samples_);
  const auto start = counts_at(i / kStride);
  std::vector<int64_t> taken(start.begin(), start.end());
  for (int64_t at = i - i % kStride; at < i; ++at) step(at, taken);
  return taken;
}

Blend::Place Blend::at(int64_t i) const {
  MT_CHECK(i < samples_, i, " of ", samples_);
  std::vector<int64_t> before = taken(i);
  return step(i, before);
}

int64_t blend_request(int64_t samples, double weight) {
  const double exact = std::ceil(static_cast<double>(samples) * weight);
  return static_cast<int64_t>(std::ceil(exact * (1 + 0.005)));
}

}  // namespace moetrain
