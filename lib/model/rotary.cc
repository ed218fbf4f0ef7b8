// Rotary frequencies and YaRN's two corrections.
#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moetrain {

namespace {

/// 0.1 x ln(factor) + 1 for factors above one.
double correction(double mscale, double factor) {
  return factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1;
}

bool given(const std::optional<double>& mscale) { return mscale && *mscale != 0; }

}  // namespace

ops::RopeTable rope_table(const ModelConfig& m) {
  ops::RopeTable table;
  table.interleave = m.rope_interleave;
  const int64_t half = m.qk_rope_head_dim / 2;
  const double width = static_cast<double>(m.qk_rope_head_dim);
  for (int64_t i = 0; i < half; ++i) {
    table.frequencies.push_back(std::pow(m.rope_theta, -2.0 * static_cast<double>(i) / width));
  }
  if (!m.rope_scaling) return table;
  const RopeScaling& y = *m.rope_scaling;
  auto dim_of = [&](double rotations) {
    return width *
           std::log(static_cast<double>(y.original_max_position_embeddings) /
                    (2 * std::numbers::pi * rotations)) /
           (2 * std::log(m.rope_theta));
  };
  const double low = std::max(std::floor(dim_of(y.beta_fast)), 0.0);
  double high = std::min(std::ceil(dim_of(y.beta_slow)), width - 1);
  if (high == low) high += 0.001;
  for (int64_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    table.frequencies[i] *= (1 - ramp) + ramp / y.factor;
  }
  table.amplitude = given(y.mscale) && given(y.mscale_all_dim)
                        ? correction(*y.mscale, y.factor) / correction(*y.mscale_all_dim, y.factor)
                        : correction(1, y.factor);
  return table;
}

double softmax_scale(const ModelConfig& m) {
  double scale = 1 / std::sqrt(static_cast<double>(m.qk_head_dim()));
  if (m.rope_scaling && given(m.rope_scaling->mscale_all_dim)) {
    const double c = correction(*m.rope_scaling->mscale_all_dim, m.rope_scaling->factor);
    scale *= c * c;
  }
  return scale;
}

}  // namespace moetrain
