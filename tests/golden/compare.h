// Comparing computed tensors with expected ones under the tolerances of the golden cases.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace moetrain::golden {

/// Largest relative error per kind of quantity, and the first that is out of tolerance.
class Report {
 public:
  /// max|a-b| <= tolerance * max|b|; all-zero b wants all-zero a.
  void relative(const std::string& kind, const std::string& name, const std::vector<float>& a,
                const std::vector<float>& b, double tolerance);
  void exact(const std::string& kind, const std::string& name, const std::vector<float>& a,
             const std::vector<float>& b);
  void absolute(const std::string& kind, const std::string& name, const std::vector<float>& a,
                const std::vector<float>& b, double tolerance);
  /// 99.9 % of all elements within 0.01 unit, every one within 0.5 unit. Call finish_weights once after.
  void weights(const std::string& name, const std::vector<float>& a, const std::vector<float>& b,
               double unit);
  void finish_weights();
  /// A failure that is not a number.
  void fail(const std::string& name, double error);

  bool passed() const { return failure_.empty(); }
  /// "quantity error" of the first failure.
  const std::string& failure() const { return failure_; }
  const std::map<std::string, double>& worst() const { return worst_; }

 private:
  void note(const std::string& kind, const std::string& name, double error, bool ok);

  std::map<std::string, double> worst_;
  std::string failure_;
  int64_t elements_ = 0, outside_ = 0;
};

}  // namespace moetrain::golden
