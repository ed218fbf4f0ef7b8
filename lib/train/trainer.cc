// The training loop.
#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "config/schema.h"
#include "config/validate.h"
#include "data/tokenizer/tokenizer.h"
#include "model/flops.h"
#include "runtime/comm/fault.h"
#include "runtime/trace.h"
#include "train/cores.h"
#include "train/dump.h"
#include "train/fabric.h"
#include "train/machine.h"
#include "train/plans.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/start_report.h"

namespace moetrain {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What every rank tells the others after a step.
struct RankReport {
  int64_t stop_signal = 0;
  int64_t inter = 0, intra = 0;
  double comm_seconds = 0, exposed_seconds = 0;
  int64_t memory = 0;
  int64_t row_growths = 0;  ///< since the start
};

/// Where a run stands between two steps; saved with every checkpoint.
struct Progress {
  int64_t step = 0;     ///< steps done
  int64_t samples = 0;  ///< sequences consumed
  int64_t updates = 0;  ///< steps that were applied
  int64_t skipped = 0;  ///< steps with a non-finite gradient
  int64_t skipped_in_a_row = 0;
};

class Trainer {
 public:
  Trainer(const Config& given, Fabric& fabric, const TrainCommand& command)
      : config_(given), fabric_(fabric), command_(command), started_(now()) {
    agree(fabric_, [&] { prepare(); });
    session_ = std::make_unique<Session>(config_, fabric_, session_options());
    agree(fabric_, [&] { start_states(); });
    report_start();
  }

  int run() {
    const int64_t last = std::min(total_, command_.steps.value_or(total_));
    int code = kExitDone;
    while (at_.step < last && code == kExitDone) {
      one_step();
      code = decide();
      const bool interval =
          config_.checkpoint.interval > 0 && at_.step % config_.checkpoint.interval == 0;
      if (code != kExitNumbers && (interval || code == kExitResubmit || at_.step == last)) save();
    }
    if (root()) {
      folder_->finish();
      if (code == kExitResubmit) {
        log_warning(cat("stopped after step ", at_.step, " of ", total_, " (", stop_reason_,
                        "); the checkpoint is saved: start the same command again to go on"));
      } else if (code == kExitDone && at_.step >= last) {
        log_info(cat("done: step ", at_.step, " of ", total_, ", checkpoint in ", checkpoints(),
                     "/", step_folder(at_.step)));
      }
    }
    fabric_.barrier();
    return code;
  }

 private:
  bool root() const { return fabric_.rank() == 0; }
  std::string checkpoints() const { return config_.run.output_dir + "/checkpoints"; }
  SessionOptions session_options() const {
    SessionOptions o;
    o.dump = !config_.debug.dump.steps.empty();
    return o;
  }
  FillBatch filler(const Sampler& sampler) const {
    return [&sampler](int64_t first, int64_t count, Batch& b) { sampler.fill(first, count, b); };
  }

  /// Everything that can be refused before ranks depend on one another.
  void prepare() {
    resolve(config_, fabric_.size(), config_.parallel.ranks_per_node.value_or(0));
    validate(config_, fabric_.size());
    validate_training(config_);
    machine_ = load_machine(config_.compute.machine.value_or(""));
    tokenizer_ = open_tokenizer(config_.data.tokenizer);
    if (tokenizer_->vocab_size() > config_.model.vocab_size) {
      throw UserError(std::vector<Diagnostic>{
          {config_.where("model.vocab_size"),
           cat("model.vocab_size: ", config_.model.vocab_size, " is smaller than the ",
               tokenizer_->vocab_size(), " ids of data.tokenizer '", config_.data.tokenizer,
               "'; set it to at least that")}});
    }
    batches_ = std::make_unique<BatchSchedule>(batch_schedule(config_));
    total_ = total_steps(config_, *batches_);
    rate_ = std::make_unique<LearningRate>(learning_rate(config_, *batches_, total_));
    sampler_ = training_sampler(config_, *tokenizer_, batches_->samples_after(total_));
    if (config_.train.validation_interval > 0) {
      const int64_t micro = config_.train.micro_batch_size * *config_.parallel.data;
      validation_samples_ = std::max(
          micro, config_.train.validation_steps * config_.train.global_batch_size / micro * micro);
      validation_ = validation_sampler(config_, *tokenizer_, validation_samples_);
    }
    if (root()) lock_ = std::make_unique<FolderLock>(config_.run.output_dir);
  }

  /// What to start from: auto, none or a path.
  std::string wish() const {
    return command_.resume.empty() ? config_.checkpoint.resume : command_.resume;
  }

  /// Fresh weights or a checkpoint.
  void start_states() {
    const std::string wish = this->wish();
    std::vector<std::string> warnings;
    std::string from;
    if (root()) {
      uint64_t bytes = 0;
      for (const auto& [name, shape] : session_->checkpoint_states()) bytes += numel(shape) * 4;
      const std::string warning = prepare_root(checkpoints(), bytes, config_.checkpoint.keep + 1);
      if (!warning.empty()) log_warning(warning);
      if (wish == "auto") {
        from = find_checkpoint(checkpoints(), Trust::kSizes, &warnings);
      } else if (wish != "none") {
        from = resolve_checkpoint(wish, &warnings);
      }
      for (const std::string& w : warnings) log_warning(w);
    }
    from_ = from;
  }

  void load_states() {
    from_ = fabric_.broadcast(from_);
    if (!from_.empty()) {
      from_ = restore_session(*session_, fabric_, from_, wish() == "auto" ? checkpoints() : "");
    }
    agree(fabric_, [&] {
      if (from_.empty()) {
        session_->initialise(static_cast<uint64_t>(config_.run.seed));
        return;
      }
      const CheckpointReader reader(from_);
      if (reader.step() == 0) return;  // imported weights: a run of its own begins
      at_.step = reader.step();
      at_.samples = reader.metadata_int("consumed_samples");
      at_.updates = reader.metadata_int("updates");
      at_.skipped = reader.metadata_int("skipped_steps");
      at_.skipped_in_a_row = reader.metadata_int("skipped_in_a_row");
      other_seeds_ = other_seeds(reader.manifest().metadata);
      if (at_.samples != batches_->samples_after(at_.step)) {
        throw UserError(cat(
            "cannot resume from ", from_, ": it had consumed ", at_.samples, " samples after step ",
            at_.step, ", but train.global_batch_size and batch_ramp now make that ",
            batches_->samples_after(at_.step), "; use the batch plan of the run that wrote it"));
      }
    });
  }

  /// What to say when the checkpoint was written with other seeds. Nothing but initial weights and
  /// the order of samples is random, so no random state is stored.
  std::string other_seeds(const std::map<std::string, std::string>& metadata) const {
    const auto written = metadata.find("data_seed");
    const std::string now = std::to_string(*config_.data.seed);
    if (written == metadata.end() || written->second == now) return "";
    return cat("the checkpoint was written with data.seed ", written->second, ", this run has ",
               now, ": weights are the checkpoint's, the order of samples follows seed ", now,
               " from here on, so samples may repeat or be left out");
  }

  void report_start() {
    load_states();
    const std::string cores = check_cores(config_, fabric_);
    if (!root()) return;
    if (!cores.empty()) log_warning(cores);
    folder_ = std::make_unique<RunFolder>(config_, at_.step, total_);
    const std::string machine = cat("# plans are made for machine \"", machine_.name, "\" [",
                                    machine_hash(machine_), "]\n");
    folder_->write("resolved.yaml", machine + show_config(config_));
    folder_->write("plan.txt", machine + plan_report(*session_));
    const std::string tokenizer = config_.data.tokenizer;
    if (tokenizer != "bytes") folder_->write("tokenizer.json", read_file(tokenizer));
    log_info(start_report(config_, *session_, fabric_.size(), total_));
    log_info(sampler_->describe());
    const bool no_part = config_.data.validation.empty() &&
                         (config_.data.split.size() < 2 || config_.data.split[1] <= 0);
    if (config_.train.validation_interval > 0 && !validation_ && no_part) {
      log_warning(
          "train.validation_interval is set but there is no validation data; none is taken");
    }
    if (from_.empty()) log_info("starting from step 0: fresh weights, no checkpoint is used");
    if (!from_.empty()) log_info(cat("resumed from ", from_, " after step ", at_.step));
    if (!other_seeds_.empty()) log_warning(other_seeds_);
    if (at_.step >= total_) {
      log_info(cat("nothing to do: step ", at_.step, " of ", total_, " is done"));
    }
  }

  void one_step() {
    const double begin = now();
    const int64_t step = at_.step + 1;
    const int64_t batch = batches_->batch_at(at_.samples);
    const int64_t tokens_before = at_.samples * config_.data.sequence_length;
    std::vector<int64_t> valid = sampler_->valid_counts(at_.samples, batch);
    StepSettings settings;
    settings.learning_rate = rate_->at(step);
    settings.update = at_.updates + 1;
    settings.mtp_lambda = knob_at(config_.train.mtp_lambda, config_.train.mtp_lambda_schedule,
                                  at_.step, tokens_before);
    settings.bias_speed = knob_at(config_.router.bias_update_speed,
                                  config_.router.bias_update_schedule, at_.step, tokens_before);
    settings.poison = contains(config_.debug.inject_nonfinite_steps, step);
    const bool traced = contains(config_.debug.trace_steps, step);
    TraceRecorder recorder(fabric_.rank());
    if (traced) session_->executor().observe(&recorder);
    const TrafficCounters before = fabric_.traffic();
    result_ = session_->train_step(at_.samples, batch, valid, settings, filler(*sampler_));
    if (traced) {
      session_->executor().observe(nullptr);
      const auto events = fabric_.gather(recorder.events());
      const auto summaries = fabric_.gather(recorder.summary());
      if (root()) folder_->write("trace.json", trace_json(events, summaries));
    }
    if (contains(config_.debug.dump.steps, step)) dump(step);

    at_.step = step;
    at_.samples += batch;
    if (result_.applied) {
      ++at_.updates;
      at_.skipped_in_a_row = 0;
    } else {
      ++at_.skipped;
      ++at_.skipped_in_a_row;
    }
    const double seconds = now() - begin;
    std::optional<double> validation;
    if (validation_ && (step % config_.train.validation_interval == 0 || step == total_)) {
      validation = validate_now();
    }
    share_reports(before);
    if (root()) folder_->log(metrics(batch, settings, seconds, validation));
  }

  static bool contains(const std::vector<int64_t>& list, int64_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }

  void share_reports(const TrafficCounters& before) {
    const TrafficCounters after = fabric_.traffic();
    RankReport mine;
    mine.stop_signal = stop_requested();
    mine.inter = after.inter_node_bytes - before.inter_node_bytes;
    mine.intra = after.intra_node_bytes - before.intra_node_bytes;
    const auto comm = session_->executor().take_comm_seconds();
    for (const auto& [kind, seconds] : comm) {
      mine.comm_seconds += seconds.total;
      mine.exposed_seconds += seconds.exposed;
    }
    mine.memory = session_->executor().memory_bytes();
    // rank 0 says it itself, the moment it happens
    mine.row_growths = root() ? 0 : session_->executor().row_arena_growths();
    const int64_t row_growths = totals_.row_growths;
    totals_ = {};
    comm_ = comm;
    if (root() && config_.run.time_limit && now() - started_ > *config_.run.time_limit) {
      mine.stop_signal = -1;
    }
    const std::string packed(reinterpret_cast<const char*>(&mine), sizeof mine);
    for (const std::string& other : fabric_.gather(packed)) {
      RankReport r;
      std::memcpy(&r, other.data(), sizeof r);
      if (r.stop_signal != 0 && totals_.stop_signal == 0) totals_.stop_signal = r.stop_signal;
      totals_.inter += r.inter;
      totals_.intra += r.intra;
      totals_.comm_seconds += r.comm_seconds / fabric_.size();
      totals_.exposed_seconds += r.exposed_seconds / fabric_.size();
      totals_.memory = std::max(totals_.memory, r.memory);
      totals_.row_growths += r.row_growths;
    }
    if (root() && totals_.row_growths > row_growths) {
      log_warning(cat("step ", at_.step, ": token rows of other ranks outgrew their memory, ",
                      totals_.row_growths,
                      " times since the start: routing is less balanced than "
                      "compute.ragged_headroom allows for"));
    }
  }

  StepMetrics metrics(int64_t batch, const StepSettings& settings, double seconds,
                      std::optional<double> validation) const {
    StepMetrics m;
    m.step = at_.step;
    m.samples = at_.samples;
    m.tokens = at_.samples * config_.data.sequence_length;
    m.global_batch_size = batch;
    m.loss = result_.loss;
    m.main_loss = result_.main_loss;
    if (config_.model.num_nextn_predict_layers > 0) m.mtp_loss = result_.mtp_loss;
    if (config_.model.moe_layers() > 0) m.balance_loss = result_.balance_loss;
    m.grad_norm = result_.grad_norm;
    m.learning_rate = settings.learning_rate;
    m.step_time_s = seconds;
    m.tokens_per_second = static_cast<double>(batch * config_.data.sequence_length) / seconds;
    m.tflops_per_rank = m.tokens_per_second / fabric_.size() *
                        training_flops_per_token(config_.model, config_.data.sequence_length) /
                        1e12;
    if (config_.compute.machine) {
      m.mfu = m.tflops_per_rank * 1e12 / machine_.matmul_flops(config_.compute.precision);
    }
    m.validation_loss = validation;
    m.skipped_steps = at_.skipped;
    ExpertLoad all;
    all.min = std::numeric_limits<double>::infinity();
    double sum = 0, squares = 0, count = 0;
    for (const auto& [layer, load] : result_.loads) {
      double total = 0, most = 0;
      for (int64_t n : load) {
        total += static_cast<double>(n);
        most = std::max(most, static_cast<double>(n));
      }
      const double mean = total / static_cast<double>(load.size());
      m.max_violation.push_back(mean > 0 ? most / mean - 1 : 0);
      for (int64_t n : load) {
        const double relative = mean > 0 ? static_cast<double>(n) / mean : 0;
        all.min = std::min(all.min, relative);
        all.max = std::max(all.max, relative);
        sum += relative;
        squares += relative * relative;
        ++count;
      }
    }
    if (count > 0) {
      all.mean = sum / count;
      all.std = std::sqrt(std::max(0.0, squares / count - all.mean * all.mean));
      m.expert_load = all;
    }
    m.bytes_inter_node = totals_.inter;
    m.bytes_intra_node = totals_.intra;
    m.comm_s = totals_.comm_seconds;
    m.exposed_comm_s = totals_.exposed_seconds;
    for (const auto& [kind, seconds] : comm_) m.exposed_comm_by_kind[kind] = seconds.exposed;
    m.memory_peak_bytes = totals_.memory;
    return m;
  }

  double validate_now() {
    if (!evaluator_) {
      SessionOptions options;
      options.purpose = GraphPurpose::kEvaluate;
      evaluator_ = std::make_unique<Session>(config_, fabric_, options);
    }
    evaluator_->copy_parameters(*session_);
    const std::vector<double> sums =
        evaluator_->evaluate(0, validation_samples_, filler(*validation_));
    const auto valid = validation_->valid_counts(0, validation_samples_);
    return valid[0] > 0 ? sums[0] / static_cast<double>(valid[0]) : 0;
  }

  /// What happens after a step: go on, or end and how.
  int decide() {
    if (at_.skipped_in_a_row > 0 && root()) {
      folder_->pause();
      log_warning(cat("step ", at_.step, ": the gradient is not finite; the step was skipped (",
                      at_.skipped_in_a_row, " in a row, ", at_.skipped, " in all)"));
    }
    if (at_.skipped_in_a_row >= config_.train.max_nonfinite_steps) {
      if (root()) {
        log_error(cat("stopped after ", at_.skipped_in_a_row,
                      " steps in a row with a non-finite gradient "
                      "(train.max_nonfinite_steps); weights and the last checkpoint are sound"));
      }
      return kExitNumbers;
    }
    if (totals_.stop_signal != 0) {
      stop_reason_ =
          totals_.stop_signal < 0 ? "run.time_limit" : cat("signal ", totals_.stop_signal);
      return kExitResubmit;
    }
    return kExitDone;
  }

  void save() {
    if (saved_step_ == at_.step) return;
    saved_step_ = at_.step;
    const std::string path = checkpoints();
    const std::vector<ShardOut> shards = session_->shards();
    const std::string mine = std::to_string(shard_bytes(shards));
    uint64_t bytes = 0;
    for (const std::string& other : fabric_.gather(mine)) bytes += std::stoull(other);
    agree(fabric_, [&] {
      if (root()) {
        folder_->sync();
        begin_save(path, at_.step, bytes);
      }
    });
    try {
      agree(fabric_, [&] { write_shards(path, at_.step, fabric_.rank(), shards); });
    } catch (const AgreedError&) {
      if (root()) abandon_save(path, at_.step);
      throw;
    }
    agree(fabric_, [&] {
      if (!root()) return;
      const std::string tokenizer =
          config_.data.tokenizer == "bytes"
              ? "bytes"
              : std::filesystem::absolute(config_.data.tokenizer).string();
      publish(path, at_.step, fabric_.size(),
              {{"step", std::to_string(at_.step)},
               {"consumed_samples", std::to_string(at_.samples)},
               {"updates", std::to_string(at_.updates)},
               {"skipped_steps", std::to_string(at_.skipped)},
               {"skipped_in_a_row", std::to_string(at_.skipped_in_a_row)},
               {"seed", std::to_string(config_.run.seed)},
               {"data_seed", std::to_string(*config_.data.seed)},
               {"tokenizer", tokenizer},
               {"config", show_config(config_)}},
              {config_.checkpoint.keep, 0});
    });
  }

  void dump(int64_t step) {
    const std::filesystem::path dir = config_.debug.dump.dir;
    const std::string where =
        (dir.is_absolute() ? dir : std::filesystem::path(config_.run.output_dir) / dir).string();
    agree(fabric_, [&] { dump_step(*session_, fabric_.rank(), step, where); });
  }

  Config config_;
  Machine machine_;
  Fabric& fabric_;
  const TrainCommand command_;
  const double started_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<BatchSchedule> batches_;
  std::unique_ptr<LearningRate> rate_;
  std::unique_ptr<Sampler> sampler_, validation_;
  int64_t validation_samples_ = 0, total_ = 0, saved_step_ = -1;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<Session> session_, evaluator_;
  std::unique_ptr<RunFolder> folder_;
  std::string from_, stop_reason_, other_seeds_;
  Progress at_;
  StepResult result_;
  RankReport totals_;
  std::map<std::string, CommSeconds> comm_;  ///< of this rank's last step
};

}  // namespace

int train(const Config& config, Fabric& fabric, const TrainCommand& command) {
  return Trainer(config, fabric, command).run();
}

}  // namespace moetrain
