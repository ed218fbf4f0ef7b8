// Checkpoints to and from Hugging Face folders, with the config.json that belongs to them.
#pragma once

#include <string>

#include "base/dtype.h"
#include "config/config.h"

namespace moetrain {

/// The published config.json of a model, with the published key names.
std::string hf_config_json(const ModelConfig& model, DType dtype);

/// Writes checkpoint `folder` (a step folder) as Hugging Face folder `to` (new or empty), with its
/// tokenizer.json if it has one.
void export_checkpoint(const std::string& folder, const std::string& to, DType dtype);

/// Turns Hugging Face folder `from` into checkpoint step 0 of run folder `run`, under `config`
/// (whose model must be the folder's). Moments are absent. Returns the checkpoint's folder.
std::string import_checkpoint(const std::string& from, const std::string& run,
                              const Config& config);

}  // namespace moetrain
