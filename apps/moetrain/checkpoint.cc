// `moetrain checkpoint`: look at, verify, export and import checkpoints.
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "commands.h"
#include "config/load.h"
#include "train/exchange.h"
#include "train/weights.h"

namespace moetrain {

namespace {

/// The checkpoint the user means: the path given, else that of the config's run.
std::string find(const CheckpointCommand& c) {
  std::string path = c.path;
  if (path.empty() && !c.source.file.empty()) {
    path = load_config(c.source.file, c.source.sets).run.output_dir;
  }
  if (path.empty()) throw UserError("give a checkpoint: a PATH, or --config of the run");
  std::vector<std::string> warnings;
  const std::string folder = resolve_checkpoint(path, &warnings);
  for (const std::string& w : warnings) log_warning(w);
  return folder;
}

void need_hf(const CheckpointCommand& c, const char* option) {
  if (c.foreign.first != "hf") {
    throw UserError(
        cat(option, " ", c.foreign.first, ": the only foreign format is hf: ", option, " hf DIR"));
  }
}

}  // namespace

int run_checkpoint_inspect(const CheckpointCommand& c) {
  std::cout << CheckpointReader(find(c), false).describe();
  return 0;
}

int run_checkpoint_verify(const CheckpointCommand& c) {
  const std::string folder = find(c);
  verify_checkpoint(folder);
  std::cout << folder << ": complete and undamaged\n";
  return 0;
}

int run_checkpoint_export(const CheckpointCommand& c) {
  need_hf(c, "--to");
  const std::string folder = find(c);
  export_checkpoint(folder, c.foreign.second, c.dtype == "fp32" ? DType::kF32 : DType::kBF16);
  std::cout << folder << " exported to " << c.foreign.second << "\n";
  return 0;
}

int run_checkpoint_import(const CheckpointCommand& c) {
  need_hf(c, "--from");
  const WeightSource weights = find_weights(c.foreign.second, c.source.file, c.source.sets);
  if (weights.hf.empty()) throw UserError(c.foreign.second + ": not a Hugging Face folder");
  std::string run = c.path;
  if (run.empty() && !c.source.file.empty()) run = weights.config.run.output_dir;
  if (run.empty()) throw UserError("give the run folder to import into: a PATH, or --config");
  std::cout << c.foreign.second << " imported as "
            << import_checkpoint(c.foreign.second, run, weights.config) << "\n";
  return 0;
}

}  // namespace moetrain
