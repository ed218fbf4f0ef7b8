// From files and command line to a Config.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace moetrain {

/// Reads a YAML file, applies `key.path=value` settings over it (in order) and returns the typed
/// result. Precedence: default < model.hf_config < file < settings. Throws one UserError with every
/// fault found (unknown, duplicate, misplaced, mistyped, out-of-range or missing keys). Reads no
/// other file than the YAML and the config.json it names. Divisibility and topology are checked by
/// validate().
Config load_config(const std::string& path, const std::vector<std::string>& sets = {});

/// The same from text; `name` stands for the file in messages, `dir` is where relative paths start.
Config parse_config(const std::string& text, const std::string& name, const std::string& dir,
                    const std::vector<std::string>& sets = {});

/// Only the model, from a published config.json. Throws UserError.
ModelConfig load_hf_model(const std::string& path);

/// A Config around a published config.json, defaults elsewhere, then settings. For folders of
/// weights that come without a YAML file: keys a YAML file must give (sequence length, batch) may
/// be missing.
Config config_from_hf(const std::string& path, const std::vector<std::string>& sets = {});

}  // namespace moetrain
