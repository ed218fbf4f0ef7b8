// A published config.json as a YamlNode; the only door to the JSON library.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/node.h"

namespace moetrain {

/// Reads a config.json and keeps the keys that section `model` knows (others are informational and
/// ignored). Spellings of newer exports are understood (rope_type, dtype, rope_parameters). Faults
/// are appended.
YamlNode read_hf_config(const std::string& path, std::vector<Diagnostic>& faults);

}  // namespace moetrain
