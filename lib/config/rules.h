// Shared by the rule files of validate(): collecting complaints and naming the nearest valid
// values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"

namespace moetrain {

/// Complaints about one configuration.
struct Rules {
  const Config& config;
  int64_t world_size;
  std::vector<Diagnostic> faults;

  /// A complaint about the key at `path`, placed where that key was written.
  template <class... Parts>
  void refuse(const std::string& path, const Parts&... parts) {
    faults.push_back({config.where(path), cat(parts...)});
  }

  /// `value` must be a multiple of `divisor`; both with their names, which may be products of keys.
  /// False if it is not.
  bool divides(const std::string& path, const std::string& value_name, int64_t value,
               const std::string& divisor_name, int64_t divisor);
};

/// "112 or 120": the multiples of `divisor` around `value` (at least one divisor).
std::string nearest_multiples(int64_t value, int64_t divisor);

/// "2 or 4": the divisors of `value` around `wanted`.
std::string nearest_divisors(int64_t value, int64_t wanted);

void check_model(Rules& rules);
void check_recipe(Rules& rules);
void check_ranks(Rules& rules);
void check_splits(Rules& rules);
void check_pipeline(Rules& rules);
void check_user_mesh(Rules& rules);

}  // namespace moetrain
