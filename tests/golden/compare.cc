// Comparing computed tensors with expected ones.
#include "compare.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace moetrain::golden {

void Report::note(const std::string& kind, const std::string& name, double error, bool ok) {
  double& worst = worst_[kind];
  if (!(error <= worst)) worst = error;
  if (!ok && failure_.empty()) failure_ = cat(name, " ", error);
}

void Report::fail(const std::string& name, double error) { note("shape", name, error, false); }

void Report::relative(const std::string& kind, const std::string& name, const std::vector<float>& a,
                      const std::vector<float>& b, double tolerance) {
  if (a.size() != b.size()) return fail(name + " (size)", static_cast<double>(a.size()));
  double difference = 0, scale = 0;
  bool finite = true;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) finite = false;
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  // A sum that cancels leaves 1e-18 or so in double precision (the router's gradient when a single
  // normalised weight is always one): that is an expected zero.
  constexpr double kNoise = 1e-15;
  const bool zero = scale <= kNoise;
  const double error = !finite ? INFINITY : zero ? difference : difference / scale;
  note(kind, name, error, zero ? error <= scale : error <= tolerance);
}

void Report::exact(const std::string& kind, const std::string& name, const std::vector<float>& a,
                   const std::vector<float>& b) {
  if (a.size() != b.size()) return fail(name + " (size)", static_cast<double>(a.size()));
  double wrong = 0;
  for (size_t i = 0; i < b.size(); ++i) wrong += a[i] != b[i];
  note(kind, name, wrong, wrong == 0);
}

void Report::absolute(const std::string& kind, const std::string& name, const std::vector<float>& a,
                      const std::vector<float>& b, double tolerance) {
  if (a.size() != b.size()) return fail(name + " (size)", static_cast<double>(a.size()));
  double difference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(double{a[i]} - b[i]);
    difference = d >= difference || std::isnan(d) ? d : difference;
  }
  note(kind, name, difference, difference <= tolerance);
}

void Report::weights(const std::string& name, const std::vector<float>& a,
                     const std::vector<float>& b, double unit) {
  if (a.size() != b.size()) return fail(name + " (size)", static_cast<double>(a.size()));
  double worst = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(double{a[i]} - b[i]) / unit;
    ++elements_;
    if (!(d <= 0.01)) ++outside_;
    worst = d >= worst || std::isnan(d) ? d : worst;
  }
  note("final (in lr)", name, worst, worst <= 0.5);
}

void Report::finish_weights() {
  const double share = elements_ ? static_cast<double>(outside_) / elements_ : 0;
  note("final (share beyond 0.01 lr)", "final.*", share, share <= 1e-3);
}

}  // namespace moetrain::golden
