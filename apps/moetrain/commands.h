// What the user may ask for: one option struct and one function per subcommand; each returns an
// exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moetrain {

/// `--config FILE` and every `--set key.path=value`, in the order given.
struct ConfigSource {
  std::string file;
  std::vector<std::string> sets;
};

struct ConfigCommand {
  ConfigSource source;
  int64_t world_size = 0;  ///< 0: the smallest the file allows
};
int run_config_check(const ConfigCommand& command);
int run_config_show(const ConfigCommand& command);
int run_config_schema();

struct DataCommand {
  std::vector<std::string> inputs;
  std::string output;     ///< prefix, or the tokenizer.json to write
  std::string tokenizer;  ///< "bytes" or a tokenizer.json; empty: of the config, else bytes
  std::string format = "auto", key = "text", documents = "file", eod_token;
  bool no_eod = false;
  int threads = 0;
  int64_t vocab_size = 0, min_count = 2;
  ConfigSource source;
};
int run_data_build(const DataCommand& command);
int run_data_inspect(const DataCommand& command);
int run_data_train_tokenizer(const DataCommand& command);

struct CheckpointCommand {
  std::string path;  ///< the checkpoint, or the run folder to import into
  std::pair<std::string, std::string> foreign;  ///< format and folder of --to or --from
  std::string dtype = "bf16";
  ConfigSource source;
};
int run_checkpoint_inspect(const CheckpointCommand& command);
int run_checkpoint_verify(const CheckpointCommand& command);
int run_checkpoint_export(const CheckpointCommand& command);
int run_checkpoint_import(const CheckpointCommand& command);

struct PlanCommand {
  ConfigSource source;
  int64_t world_size = 0;
  int rank = 0;
  std::string machine, diff, trace;
  bool explain = false, tape = false, json = false, search = false;
};
int run_plan(const PlanCommand& command);

struct TrainArguments {
  ConfigSource source;
  std::string resume;
  std::optional<int64_t> steps;
};
int run_train(const TrainArguments& command);

struct EvalCommand {
  ConfigSource source;
  std::string checkpoint;
  std::string split = "validation";
  int64_t steps = 0;  ///< global batches; 0: train.validation_steps
  bool json = false;
};
int run_eval(const EvalCommand& command);

struct GenerateCommand {
  ConfigSource source;
  std::string checkpoint, prompt, tokenizer;
  int64_t max_tokens = 200, seed = 1234;
  double temperature = 0.8, top_p = 0.95;
};
int run_generate(const GenerateCommand& command);

struct BenchCommand {
  std::string what = "all";
  std::string machine_file;  ///< to write
  int threads = 0;           ///< of a rank; 0: its share of the cores
  int ranks_per_node = 0;    ///< 0: by host
  bool json = false;
  // kernels
  std::string filter;
  double seconds = 0.15;
  // collectives, dispatch
  int repeats = 15;
  int64_t tokens = 1024, hidden = 512, experts = 16, top_k = 4;
  std::string precision = "bf16", transport, routing;
  // step
  ConfigSource source;
  int steps = 7;
  std::vector<std::string> against;
};
int run_bench(const BenchCommand& command);

}  // namespace moetrain
