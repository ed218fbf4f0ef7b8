// Helpers of description rows.
#include "config/row.h"

#include <cmath>

namespace moetrain {

Fields bounded(Fields rows, double most) {
  for (Field& field : rows) {
    const bool whole = std::holds_alternative<int64_t*>(field.target) ||
                       std::holds_alternative<std::optional<int64_t>*>(field.target) ||
                       std::holds_alternative<Auto<int64_t>*>(field.target) ||
                       std::holds_alternative<Auto<std::vector<int64_t>>*>(field.target) ||
                       std::holds_alternative<NamedSizes*>(field.target);
    if (whole && std::isinf(field.high) && field.only.empty()) field.high = most;
  }
  return rows;
}

}  // namespace moetrain
