// Times whole training steps.
#include "train/bench_step.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/json.h"
#include "config/validate.h"
#include "model/flops.h"
#include "train/bench_machine.h"
#include "train/bench_operations.h"
#include "train/bench_tools.h"
#include "train/cores.h"
#include "train/fabric.h"
#include "train/session.h"

namespace moetrain {

namespace {

/// Sequences of random ids; a sample's content depends on its number only.
void fill_random(const Config& config, int64_t first, int64_t count, Batch& batch) {
  const int64_t s = config.data.sequence_length, depths = config.model.num_nextn_predict_layers;
  batch.resize(count, s, depths);
  for (int64_t b = 0; b < count; ++b) {
    const CounterRandom random(5, cat("bench sample ", first + b));
    auto id = [&](int64_t i) {
      return static_cast<int32_t>(random.bits(i) % config.model.vocab_size);
    };
    for (int64_t i = 0; i < s; ++i) {
      batch.pos[b * s + i] = static_cast<int32_t>(i);
      batch.doc_start[b * s + i] = 0;
      for (int64_t k = 0; k <= depths; ++k) {
        batch.tokens_at(k)[b * s + i] = id(i + k);
        batch.labels_at(k)[b * s + i] = id(i + k + 1);
        batch.valid_at(k)[b * s + i] = i < s - k ? 1.0f : 0.0f;
      }
    }
  }
}

/// Processor seconds of this process so far, all threads, user and system.
double process_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A variant as a running model.
class Contender {
 public:
  Contender(StepVariant variant, Fabric& fabric)
      : variant_(std::move(variant)), fabric_(fabric) {
    SessionOptions options;
    options.reference = variant_.reference;
    session_ = std::make_unique<Session>(variant_.config, fabric, options);
    session_->initialise(static_cast<uint64_t>(variant_.config.run.seed));
  }

  const Config& config() const { return variant_.config; }
  const std::string& name() const { return variant_.name; }
  Session& session() { return *session_; }
  int64_t tokens() const {
    return config().train.global_batch_size * config().data.sequence_length;
  }

  /// Seconds of one step of this rank, all ranks starting together.
  double step() {
    const Config& c = config();
    const int64_t batch = c.train.global_batch_size, s = c.data.sequence_length;
    std::vector<int64_t> valid;
    for (int64_t k = 0; k <= c.model.num_nextn_predict_layers; ++k) valid.push_back(batch * (s - k));
    StepSettings settings;
    settings.learning_rate = c.optimizer.learning_rate;
    settings.update = steps_ + 1;
    settings.mtp_lambda = c.train.mtp_lambda;
    settings.bias_speed = c.router.bias_update_speed;
    fabric_.barrier();
    const double begin = wall_seconds();
    session_->train_step(steps_ * batch, batch, valid, settings,
                         [&](int64_t first, int64_t count, Batch& b) {
                           fill_random(c, first, count, b);
                         });
    ++steps_;
    return wall_seconds() - begin;
  }

  void timed_step() {
    session_->executor().take_comm_seconds();
    const int64_t inter = fabric_.traffic().inter_node_bytes;
    const double busy = process_seconds();
    const double seconds = step();
    busy_.push_back(fabric_.size() * mean(process_seconds() - busy));
    const int64_t crossed = fabric_.traffic().inter_node_bytes - inter;
    double moving = 0, exposed = 0;
    for (const auto& [kind, s] : session_->executor().take_comm_seconds()) {
      moving += s.total;
      exposed += s.exposed;
    }
    const std::vector<double> all = gather_numbers(fabric_, seconds);
    times_.push_back(*std::max_element(all.begin(), all.end()));
    moving_.push_back(mean(moving));
    exposed_.push_back(mean(exposed));
    inter_bytes_ = static_cast<int64_t>(mean(static_cast<double>(crossed)) * fabric_.size());
  }

  StepTiming timing(double peak) {
    StepTiming t;
    t.name = name();
    t.seconds = median(times_);
    t.best_seconds = *std::min_element(times_.begin(), times_.end());
    t.cpu_seconds = median(busy_);
    t.comm_seconds = median(moving_);
    t.exposed_seconds = median(exposed_);
    t.inter_bytes = inter_bytes_;
    t.tokens_per_second = static_cast<double>(tokens()) / t.seconds;
    t.mfu = t.tokens_per_second / fabric_.size() *
            training_flops_per_token(config().model, config().data.sequence_length) / peak;
    t.planned_bytes = fabric_.max_over_ranks(session_->planned_bytes());
    t.device_bytes = fabric_.max_over_ranks(session_->executor().memory_bytes());
    return t;
  }

 private:
  double mean(double mine) const {
    double sum = 0;
    for (double x : gather_numbers(fabric_, mine)) sum += x;
    return sum / fabric_.size();
  }

  StepVariant variant_;  // the session keeps a reference to its config
  Fabric& fabric_;
  std::unique_ptr<Session> session_;
  int64_t steps_ = 0;
  std::vector<double> times_, busy_, moving_, exposed_;
  int64_t inter_bytes_ = 0;
};

std::string mebibytes(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

}  // namespace

StepsReport bench_steps(Fabric& fabric, std::vector<StepVariant> variants,
                        const BenchStepOptions& options) {
  MT_CHECK(!variants.empty() && options.steps > 0, "nothing to time");
  agree(fabric, [&] {
    for (StepVariant& v : variants) {
      resolve(v.config, fabric.size(), v.config.parallel.ranks_per_node.value_or(0));
      validate(v.config, fabric.size());
    }
  });
  StepsReport report;
  std::vector<std::unique_ptr<Contender>> all;
  for (StepVariant& v : variants) {
    all.push_back(std::make_unique<Contender>(std::move(v), fabric));
    all.back()->step();  // touches all memory; not timed
    if (all.size() == 1) report.process_bytes = fabric.max_over_ranks(process_peak_bytes());
  }
  const Config& first = all.front()->config();
  const std::string machine_file = first.compute.machine.value_or("");
  const int threads = static_cast<int>(rank_threads(first, fabric));
  report.peak_probed = machine_file.empty();
  auto peak = [&] {
    const RankPeaks peaks = probe_rank_peaks(fabric, threads);
    return first.compute.precision == Precision::kBf16 ? peaks.bf16 : peaks.fp32;
  };
  report.peak_flops = report.peak_probed
                          ? peak()
                          : load_machine(machine_file).matmul_flops(first.compute.precision);
  for (int i = 0; i < options.steps; ++i) {
    for (const auto& contender : all) contender->timed_step();
    // neighbours on a shared machine can halve what one probe sees: the best of all is the peak
    if (report.peak_probed) report.peak_flops = std::max(report.peak_flops, peak());
  }
  for (const auto& contender : all) report.timings.push_back(contender->timing(report.peak_flops));
  if (options.operations) {
    Session& session = all.front()->session();
    OperationTimes times(session);
    session.executor().observe(&times);
    const double seconds = all.front()->step();
    session.executor().observe(nullptr);
    report.operations = times.table(seconds, report.peak_flops);
  }
  return report;
}

std::string StepsReport::text() const {
  const StepTiming& base = timings.front();
  std::string out = format_line("peak of one rank %.1f GFLOP/s (%s); steps in turns, medians\n",
                                peak_flops / 1e9,
                                peak_probed ? "probed now, before and between the steps" : "machine file");
  out += format_line("%-34s %10s %10s %8s %7s %11s %12s %12s\n", "variant", "ms/step", "tokens/s",
                     "MFU %", "ratio", "exposed ms", "planned", "held");
  for (const StepTiming& t : timings) {
    out += format_line("%-34s %10.2f %10.1f %8.2f %7.3f %11.2f %12s %12s\n", t.name.c_str(),
                       t.seconds * 1e3, t.tokens_per_second, 100 * t.mfu,
                       t.tokens_per_second / base.tokens_per_second, t.exposed_seconds * 1e3,
                       mebibytes(t.planned_bytes).c_str(), mebibytes(t.device_bytes).c_str());
  }
  out += cat("ratio: tokens/s over those of '", base.name, "'. exposed: communication that computation "
             "waited for, mean over ranks. planned, held: memory of the fullest rank by the plan and "
             "by the executor; its process, with only '", base.name, "' in it: ", mebibytes(process_bytes), "\n");
  if (!operations.empty()) out += "\n" + operations;
  return out;
}

std::string StepsReport::json() const {
  std::string out = cat("{\"peak_flops\": ", json_number(peak_flops),
                        ", \"process_bytes\": ", process_bytes, ", \"variants\": [");
  for (size_t i = 0; i < timings.size(); ++i) {
    const StepTiming& t = timings[i];
    out += cat(i ? ", " : "", "{\"name\": ", json_quote(t.name),
               ", \"seconds\": ", json_number(t.seconds),
               ", \"best_seconds\": ", json_number(t.best_seconds),
               ", \"tokens_per_second\": ", json_number(t.tokens_per_second),
               ", \"cpu_s\": ", json_number(t.cpu_seconds),
               ", \"comm_s\": ", json_number(t.comm_seconds),
               ", \"exposed_comm_s\": ", json_number(t.exposed_seconds),
               ", \"bytes_inter_node\": ", t.inter_bytes,
               ", \"mfu\": ", json_number(t.mfu), ", \"planned_bytes\": ", t.planned_bytes,
               ", \"device_bytes\": ", t.device_bytes, "}");
  }
  return out + "]}\n";
}

}  // namespace moetrain
