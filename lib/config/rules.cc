// The list of rules, and how a divisibility complaint reads.
#include "config/rules.h"

#include "config/validate.h"

namespace moetrain {

std::string nearest_multiples(int64_t value, int64_t divisor) {
  const int64_t below = value / divisor * divisor;
  if (below == 0) return cat(divisor);
  return cat(below, " or ", below + divisor);
}

std::string nearest_divisors(int64_t value, int64_t wanted) {
  constexpr int64_t kFarthest = 1 << 20;
  int64_t below = 0, above = 0;
  for (int64_t d = 1; d <= value && d <= kFarthest; ++d) {
    if (value % d != 0) continue;
    if (d <= wanted) below = d;
    if (d > wanted) {
      above = d;
      break;
    }
  }
  if (above == 0) return cat(below);
  if (below == 0) return cat(above);
  return cat(below, " or ", above);
}

bool Rules::divides(const std::string& path, const std::string& value_name, int64_t value,
                    const std::string& divisor_name, int64_t divisor) {
  if (value % divisor == 0) return true;
  refuse(path, "`", path, "`: ", value_name, " must be divisible by ", divisor_name, ", but ",
         value, " % ", divisor, " = ", value % divisor, "; nearest ", value_name, ": ",
         nearest_multiples(value, divisor), "; nearest ", divisor_name, ": ",
         nearest_divisors(value, divisor));
  return false;
}

std::vector<Diagnostic> check(const Config& config, int64_t world_size) {
  Rules rules{config, world_size, {}};
  check_model(rules);
  check_recipe(rules);
  check_ranks(rules);
  check_splits(rules);
  check_pipeline(rules);
  check_user_mesh(rules);
  return std::move(rules.faults);
}

void validate(const Config& config, int64_t world_size) {
  std::vector<Diagnostic> faults = check(config, world_size);
  if (!faults.empty()) throw UserError(std::move(faults));
}

void validate_training(const Config& config) {
  Rules rules{config, 1, {}};
  if (config.data.train.empty())
    rules.refuse(
        "data",
        "`data.train` is missing: list the sets to train on, like [{prefix: corpus/train}]");
  if (!config.train.steps && !config.train.tokens)
    rules.refuse("train", "the length of the run is missing: give `train.steps` or `train.tokens`");
  if (!rules.faults.empty()) throw UserError(std::move(rules.faults));
}

}  // namespace moetrain
