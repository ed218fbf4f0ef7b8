// Splits and NumPy's summation order; compiled without fused multiply-add.
#include "data/split.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace moetrain {

const char* name_of(Split split) {
  constexpr const char* kNames[] = {"train", "validation", "test"};
  return kNames[static_cast<int>(split)];
}

double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (double v : values) sum += v;
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 - (n / 2) % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double r[8];
  for (size_t k = 0; k < 8; ++k) r[k] = values[k];
  size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::vector<double> normalized(std::span<const double> values) {
  const double sum = numpy_sum(values);
  std::vector<double> out(values.begin(), values.end());
  for (double& v : out) v /= sum;
  return out;
}

std::array<double, 3> parse_split(std::string_view text) {
  const auto refuse = [&] {
    throw UserError(cat("data.split: \"", text,
                        "\" is no split; expected up to three shares that are not "
                        "negative and not all zero, such as \"99,1,0\" (train, validation, test)"));
  };
  std::array<double, 3> shares{};
  const std::string copy(text);
  const char* at = copy.c_str();
  size_t count = 0;
  for (;; ++at) {
    while (*at == ' ') ++at;
    char* end = nullptr;
    const double value = std::strtod(at, &end);
    if (end == at || !std::isfinite(value) || value < 0 || count == 3) refuse();
    shares[count++] = value;
    at = end;
    while (*at == ' ') ++at;
    if (*at == '\0') break;
    if (*at != ',' && *at != '/') refuse();
  }
  const double sum = numpy_sum(shares);
  if (!(sum > 0) || !std::isfinite(sum)) refuse();
  for (double& v : shares) v /= sum;
  return shares;
}

SequenceRange split_range(const std::array<double, 3>& shares, int64_t sequences, Split split) {
  const auto edge = [&](int parts) {
    double share = 0;
    for (int i = 0; i < parts; ++i) share += shares[static_cast<size_t>(i)];
    const auto at = static_cast<int64_t>(std::nearbyint(share * static_cast<double>(sequences)));
    return std::min(at, sequences);
  };
  const int part = static_cast<int>(split);
  return {edge(part), edge(part + 1)};
}

}  // namespace moetrain
