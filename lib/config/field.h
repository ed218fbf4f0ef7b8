// One row describes one knob; loading, showing and the JSON Schema all derive from these rows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace moetrain {

struct Field;
using Fields = std::vector<Field>;

/// One of a few words.
struct Choice {
  std::vector<std::string> names;
  std::function<int()> get;
  std::function<void(int)> set;
};

/// A map inside a section; `present` unset means it always is there, otherwise `null` stands for
/// absent.
struct Group {
  std::function<Fields()> fields;
  std::function<bool()> present;
  std::function<void(bool)> set_present;
};

/// A list of maps that all have the same keys.
struct Records {
  std::function<size_t()> size;
  std::function<void(size_t)> resize;
  std::function<Fields(size_t)> at;
};

/// The typed place a row fills. The variant's alternative is the knob's type.
using Target =
    std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, Auto<int64_t>*, Auto<bool>*,
                 Auto<std::vector<int64_t>>*, std::vector<int64_t>*, std::vector<double>*,
                 NamedSizes*, std::vector<ShardRow>*, Choice, Group, Records>;

/// A knob: name, type (by its target), unit, range or choices, help. Its default is what the target
/// holds in a default-constructed struct. Units "bytes" and "seconds" allow suffixes (`4GiB`,
/// `30m`).
struct Field {
  std::string name;
  Target target;
  std::string help;
  std::string unit_name;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  ///< low itself is refused
  bool below_high = false;
  std::vector<std::string> only;  ///< the spellings allowed, where a type alone allows too much
  size_t length = 0;              ///< of a list of numbers; 0: any
  bool is_required = false;

  Field unit(std::string text) && {
    unit_name = std::move(text);
    return std::move(*this);
  }
  Field at_least(double bound) && {
    low = bound;
    return std::move(*this);
  }
  Field above(double bound) && {
    low = bound;
    above_low = true;
    return std::move(*this);
  }
  Field at_most(double bound) && {
    high = bound;
    return std::move(*this);
  }
  Field below(double bound) && {
    high = bound;
    below_high = true;
    return std::move(*this);
  }
  Field one_of(std::vector<std::string> words) && {
    only = std::move(words);
    return std::move(*this);
  }
  Field of_length(size_t count) && {
    length = count;
    return std::move(*this);
  }
  Field required() && {
    is_required = true;
    return std::move(*this);
  }
};

/// Rows that fill `config`, one Group per section. The rows point into `config`.
Fields describe(Config& config);

Fields describe(RunConfig&);
Fields describe(ModelConfig&);
Fields describe(RopeScaling&);
Fields describe(DataConfig&);
Fields describe(DataSource&);
Fields describe(ParallelConfig&);
Fields describe(ComputeConfig&);
Fields describe(FusionConfig&);
Fields describe(OptimizerConfig&);
Fields describe(RateSchedule&);
Fields describe(RateStage&);
Fields describe(ChangePoint&);
Fields describe(RouterConfig&);
Fields describe(TrainConfig&);
Fields describe(BatchRampStage&);
Fields describe(CheckpointConfig&);
Fields describe(LogConfig&);
Fields describe(DebugConfig&);
Fields describe(DumpConfig&);

}  // namespace moetrain
