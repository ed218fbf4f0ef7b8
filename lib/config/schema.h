// Text derived from the description of every knob: resolved YAML, JSON Schema, reference table.
#pragma once

#include <string>

#include "config/config.h"

namespace moetrain {

/// YAML of every value, each with its origin as a comment. Loading it again gives the same values.
std::string show_config(const Config& config);

/// JSON Schema (draft 2020-12) of the YAML file, for editors.
std::string config_schema();

}  // namespace moetrain
