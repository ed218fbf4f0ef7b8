// Session: a configuration turned into a running model on this rank: graph, plan, device, states, steps.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "compile/compile.h"
#include "config/config.h"
#include "data/sampler.h"
#include "model/deepseek.h"
#include "compile/plays.h"
#include "runtime/executor.h"
#include "train/pipeline.h"

namespace moetrain {

class CheckpointReader;

struct SessionOptions {
  GraphPurpose purpose = GraphPurpose::kTrain;
  bool dump = false;            ///< hidden states, logits, routings and gradients become outputs
  bool update_weights = true;   ///< false: weights and moments stay, the routing bias still moves
  bool reference = false;       ///< every op by its reference loops
};

/// What the host decides anew for every step.
struct StepSettings {
  double learning_rate = 0;
  int64_t update = 1;           ///< counts applied updates from 1 (AdamW's t)
  double mtp_lambda = 0;
  double bias_speed = 0;
  bool poison = false;          ///< debug: makes the loss, and so every gradient, not a number
};

/// What a step gives back, the same on every rank.
struct StepResult {
  double loss = 0, main_loss = 0, mtp_loss = 0, balance_loss = 0;
  double grad_norm = 0;
  bool applied = true;          ///< false: the gradient was not finite and nothing changed
  std::map<int, std::vector<int64_t>> loads;  ///< per MoE layer, tokens per expert
  std::vector<double> loss_per_depth;
};

/// Fills samples [first, first + count) of the run into a batch (whole sequences).
using FillBatch = std::function<void(int64_t first, int64_t count, Batch&)>;

/// How a graph of this configuration looks and is laid out; shared by Session and `plan`.
GraphOptions graph_options(const Config& config, const SessionOptions& options);
CompileRequest compile_request(const Config& config, const Graph& graph, int rank, int world,
                               const LinkModel& links);

/// One rank's running model. Every public call is collective unless it says otherwise.
class Session {
 public:
  /// `config` must be resolved and validated for the fabric's size.
  Session(const Config& config, Fabric& fabric, const SessionOptions& options = {});
  ~Session();

  const Plan& plan() const { return compiled_.plan; }
  const Compiled& compiled() const { return compiled_; }
  const Graph& graph() const { return graph_; }
  Executor& executor() { return *executor_; }
  const Device& device() const { return *device_; }
  /// What the executor should hold by the plan: its states, activations and token rows, and what this device's
  /// kernels ask for besides.
  int64_t planned_bytes() const;
  const Config& config() const { return config_; }
  const std::vector<Parameter>& parameters() const { return table_; }

  /// Fresh weights from the seed, moments zero. Local.
  void initialise(uint64_t seed);
  /// Gives every parameter the box it asks for through `read(name, box, out float32)`; moments become
  /// zero. Local.
  using ReadBox = std::function<void(const std::string& name, const Box& box, float* out)>;
  void load_parameters(const ReadBox& read);
  /// Takes over the parameters of a session of the same model and layout. Local.
  void copy_parameters(Session& other);
  /// States this rank owns, under layout-independent names: parameters (float32), m:, v:. Valid until the
  /// next step. Local.
  std::vector<ShardOut> shards();
  /// Names, dtypes and global shapes a checkpoint of this model holds. Local.
  std::vector<std::pair<std::string, Shape>> checkpoint_states() const;
  /// Restores parameters and moments from a checkpoint of any layout. Local.
  void restore(const CheckpointReader& reader);

  /// Runs one training step on samples [first, first + global_batch). `valid` holds the global number of
  /// valid tokens per depth. `after_micro_batch` (optional) is called with the index of each, in order (where
  /// several are in flight, once all are done).
  StepResult train_step(int64_t first, int64_t global_batch, const std::vector<int64_t>& valid,
                        const StepSettings& settings, const FillBatch& fill,
                        const std::function<void(int64_t)>& after_micro_batch = {});
  /// Loss sums per depth over samples [first, first + count), a multiple of the micro-batch
  /// (kEvaluate sessions).
  std::vector<double> evaluate(int64_t first, int64_t count, const FillBatch& fill);

  /// Sequences of one global micro-batch.
  int64_t micro_batch() const { return options_.batch; }
  /// A named output, whole, as float32 (integers converted). Of a micro-batch: during after_micro_batch
  /// that one's, later the last one's (with several in flight only if the session dumps). Local without pipeline
  /// stages, else collective.
  std::vector<float> output(const std::string& name) const;
  /// Names and whole types of all outputs, of all stages.
  std::vector<std::pair<std::string, Type>> outputs() const;

  /// Writes this rank's part of every [b, s]-shaped input that belongs to local chunk `chunk`.
  void feed(int64_t first, const FillBatch& fill, int chunk = 0);
  void feed_scalar(const std::string& name, std::vector<float> values);

 private:
  void write_parameter(const Parameter& p, const ReadBox& read);
  void write_state(const std::string& name, const ReadBox& read, const std::string& source);
  bool has_state(const std::string& name) const;
  void check_agreement() const;
  const std::vector<Play>& plays(int micro_batches);
  void run(const Play& play, int64_t first, const FillBatch& fill);
  void keep_outputs(const Play& play);
  std::vector<float> local_output(const std::string& name) const;

  const Config& config_;
  Fabric& fabric_;
  SessionOptions session_options_;
  GraphOptions options_;
  std::vector<Parameter> table_;
  Graph graph_;
  Compiled compiled_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  Stages stages_;
  bool in_flight_ = false;  ///< several micro-batches at once
  int stage_ = 0;
  std::unique_ptr<PipeGroup> pipe_;
  std::unique_ptr<UpdateNumbers> numbers_;
  std::map<int, std::vector<Play>> plays_;  ///< by number of micro-batches
  std::map<std::pair<int, std::string>, std::vector<float>> kept_;  ///< by micro-batch and output
  int shown_ = 0;  ///< the micro-batch that output() tells of
  Batch batch_;
  std::vector<std::byte> staging_;
};

}  // namespace moetrain
