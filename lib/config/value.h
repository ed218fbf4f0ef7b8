// Small value types that configuration sections share: Auto, points in training, origins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace moetrain {

/// A knob that may be left to moetrain: empty is the word `auto`; resolve() fills it in.
template <class T>
struct Auto {
  std::optional<T> value;

  Auto() = default;
  Auto(T given) : value(std::move(given)) {}  // NOLINT: `parallel.data = 4` should read like that

  bool is_auto() const { return !value.has_value(); }
  /// The value; using it before resolve() is our bug.
  const T& operator*() const {
    MT_CHECK(value.has_value(), "a configuration value is still `auto`; call resolve() first");
    return *value;
  }
  const T* operator->() const { return &**this; }
  T value_or(T other) const { return value.value_or(std::move(other)); }
};

/// Where a value comes from. `where` is `file:line:column`, `--set key=value`, or a reason.
struct Origin {
  enum Kind { kDefault, kHfConfig, kFile, kSet, kAuto };
  Kind kind = kDefault;
  std::string where;
};

/// From this point of training on, a knob has another value. Exactly one of steps and tokens is
/// given. The value holds for the first step that starts with at least so many steps or tokens
/// behind it.
struct ChangePoint {
  std::optional<int64_t> after_steps;
  std::optional<int64_t> after_tokens;
  double value = 0;
};

/// Named sizes in the order written, major first: `{x: 2, y: 4}`.
using NamedSizes = std::vector<std::pair<std::string, int64_t>>;

}  // namespace moetrain
