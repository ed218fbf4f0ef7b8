// A knob's present value as YAML, which reads back as the same value.
#pragma once

#include <string>

#include "config/field.h"

namespace moetrain {

/// In flow style, on one line.
std::string value_text(const Field& field);

/// `text` quoted if it would not read back as the same text when plain.
std::string yaml_quoted(const std::string& text);

}  // namespace moetrain
