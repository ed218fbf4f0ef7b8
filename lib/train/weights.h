// Weights that a user points at: a checkpoint of a run, or a published folder, with the config to
// use.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf.h"
#include "config/config.h"
#include "train/session.h"

namespace moetrain {

/// Exactly one of `checkpoint` (a step folder) and `hf` is set. `config` is not yet resolved;
/// without a config file it is the one the checkpoint was trained with, laid out for any number of
/// data ranks.
struct WeightSource {
  Config config;
  std::string checkpoint, hf;
  std::string tokenizer;  ///< "bytes" or the tokenizer.json that belongs to the weights
};

/// `path`: run, checkpoints, step or Hugging Face folder; empty: the run of `config_file`.
/// UserError if neither is given or nothing is there.
WeightSource find_weights(const std::string& path, const std::string& config_file,
                          const std::vector<std::string>& sets);

/// Gives the session the weights. Names and shapes must be exactly the model's; moments are
/// ignored.
void load_weights(Session& session, const WeightSource& source);

/// The name table: every published tensor of the model. Matrices as `dtype`; norms, the router and
/// its bias stay float32. MTP layers repeat embedding and head, as published folders do.
std::vector<PublishedTensor> published_table(const ModelConfig& model, DType dtype);

}  // namespace moetrain
