// From configuration to a running model.
#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "config/field.h"
#include "train/cores.h"
#include "train/kernel_memory.h"
#include "train/machine.h"
#include "train/parallel.h"

namespace moetrain {

namespace {

/// ZeRO spreads optimizer states only where there are replicas to spread them over.
bool separate_master(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return config.compute.precision == Precision::kBf16 || (p.zero > 0 && *p.data * p.context > 1);
}

bool is_moment(const std::string& state) {
  return state.starts_with("m:") || state.starts_with("v:");
}

/// Ranks of every node when each holds the same number of consecutive ranks; else the whole job
/// counts as one node, so that nothing is planned around nodes that are not there.
int ranks_per_node(const Fabric& fabric) {
  int first = 0;
  for (int r = 0; r < fabric.size(); ++r) first += fabric.node_of(r) == 0;
  for (int r = 0; r < fabric.size(); ++r) {
    if (fabric.node_of(r) == r / first) continue;
    if (fabric.rank() == 0) {
      log_warning(
          cat("rank ", r, " does not lie where ", first,
              " consecutive ranks per host would put "
              "it: transfers are planned as if all ranks shared one host; start equally many "
              "ranks on every host, host by host"));
    }
    return fabric.size();
  }
  return first;
}

std::string layer_output(int layer) { return cat("load.", layer); }

}  // namespace

GraphOptions graph_options(const Config& config, const SessionOptions& options) {
  GraphOptions g;
  g.purpose = options.purpose;
  g.batch = config.train.micro_batch_size * *config.parallel.data;
  g.sequence = config.data.sequence_length;
  g.compute = config.compute.precision == Precision::kBf16 ? DType::kBF16 : DType::kF32;
  g.separate_master = options.purpose == GraphPurpose::kTrain && separate_master(config);
  g.balance_alpha = config.router.balance_alpha;
  g.pad_value_heads = config.compute.pad_value_heads;
  g.update_weights = options.update_weights;
  g.update = {config.optimizer.betas[0], config.optimizer.betas[1], config.optimizer.eps,
              config.optimizer.weight_decay, config.optimizer.clip_norm};
  g.dump = options.dump;
  g.stages = config_stages(config);
  g.chunk_of_layer = config_chunks(config);
  return g;
}

CompileRequest compile_request(const Config& config, const Graph& graph, int rank, int world,
                               const LinkModel& links) {
  CompileRequest request;
  request.mesh = config_mesh(config);
  request.mesh.first_rank = rank / request.mesh.size() * request.mesh.size();
  request.stages = config_stages(config);
  request.order = config_order(config, graph);
  request.micro_batches = request.order == PipelineOrder::kForwardOnly
                              ? std::vector<int>{2 * request.stages.chunks()}
                              : config_micro_batches(config);
  request.rows = config_rows(config, graph, links);
  request.links = links;
  request.rank = rank;
  request.world = world;
  request.recompute = static_cast<RecomputeMode>(static_cast<int>(config.compute.recompute));
  request.fusion = config.compute.fusion;
  FusionConfig passes = config.compute.fusion_passes;
  for (const Field& pass : describe(passes)) {
    if (!*std::get<bool*>(pass.target)) request.fusion_off.push_back(pass.name);
  }
  request.overlap.on = config.parallel.overlap;
  request.overlap.store_bytes = config.parallel.weight_gradient_store;
  request.dispatch = transport_named(kDispatchNames[static_cast<size_t>(config.parallel.dispatch)]);
  return request;
}

Session::Session(const Config& config, Fabric& fabric, const SessionOptions& options)
    : config_(config),
      fabric_(fabric),
      session_options_(options),
      options_(graph_options(config, options)),
      table_(moetrain::parameters(config.model)),
      graph_(build_graph(config.model, options_)) {
  LinkModel links = load_machine(config.compute.machine.value_or("")).links();
  links.ranks_per_node = ranks_per_node(fabric);
  compiled_ = compile(graph_, compile_request(config, graph_, fabric.rank(), fabric.size(), links));
  stages_ = config_stages(config);
  in_flight_ = std::none_of(compiled_.plan.segments.begin(), compiled_.plan.segments.end(),
                            [](const Segment& s) { return s.name == "step"; });
  stage_ = fabric.rank() / (fabric.size() / stages_.count);
  check_agreement();
  CpuOptions cpu = cpu_options(config, graph_, rank_threads(config, fabric));
  cpu.reference = options.reference;
  device_ =
      config.compute.backend == Backend::kAscend ? make_ascend_device() : make_cpu_device(cpu);
  executor_ =
      std::make_unique<Executor>(compiled_.plan, *device_, fabric, config.compute.ragged_headroom);
  pipe_ = std::make_unique<PipeGroup>(fabric, *device_, stages_.count);
  numbers_ = std::make_unique<UpdateNumbers>(graph_, stages_);
  for (const Port& p : compiled_.plan.states) executor_->clear(p);
}

/// Ranks of a stage play the same tape; both ends of a stream between stages pass the same
/// messages.
void Session::check_agreement() const {
  const Plan& plan = compiled_.plan;
  std::string mine = std::to_string(agreement_hash(plan));
  for (const auto& [stream, hash] : stream_hashes(plan)) mine += cat("\n", stream, "=", hash);
  const std::vector<std::string> all = fabric_.gather(mine);
  const int stage_ranks = fabric_.size() / stages_.count;
  std::map<std::string, std::string> streams;
  for (int r = 0; r < fabric_.size(); ++r) {
    MT_CHECK(r / stage_ranks != stage_ || all[r] == mine,
             "the ranks compiled plans that do not belong together");
    std::istringstream lines(all[r]);
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
      const size_t equals = line.find('=');
      const auto [at, fresh] = streams.emplace(line.substr(0, equals), line.substr(equals));
      MT_CHECK(fresh || at->second == line.substr(equals), "stream ", at->first,
               " between pipeline stages differs at rank ", r);
    }
  }
}

Session::~Session() = default;

bool Session::has_state(const std::string& name) const {
  const auto& states = compiled_.plan.states;
  return std::any_of(states.begin(), states.end(), [&](const Port& p) { return p.name == name; });
}

void Session::write_state(const std::string& name, const ReadBox& read, const std::string& source) {
  const Port& port = executor_->state(name);
  const Box box{port.begin, port.extent};
  const int64_t n = numel(port.extent);
  std::vector<float> values(n);
  read(source, box, values.data());
  const DType dtype = port.global.dtype;
  staging_.resize(n * size_of(dtype));
  const Tensor staged{staging_.data(), dtype, port.extent};
  if (dtype == DType::kF32) {
    std::memcpy(staging_.data(), values.data(), n * sizeof(float));
  } else {
    for (int64_t i = 0; i < n; ++i) set_element(staged, i, values[i]);
  }
  executor_->write(port, staging_.data(), staging_.size());
}

void Session::write_parameter(const Parameter& p, const ReadBox& read) {
  if (has_state(p.name)) write_state(p.name, read, p.name);
  const std::string copy = copy_name(p.name, stage_);
  if (has_state(copy)) write_state(copy, read, p.name);
  if (has_state(master_name(p.name))) write_state(master_name(p.name), read, p.name);
}

void Session::load_parameters(const ReadBox& read) {
  for (const Port& p : compiled_.plan.states) {
    if (p.name.starts_with("m:") || p.name.starts_with("v:")) executor_->clear(p);
  }
  for (const Parameter& p : table_) write_parameter(p, read);
}

void Session::initialise(uint64_t seed) {
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& p : table_) by_name[p.name] = &p;
  load_parameters([&](const std::string& name, const Box& box, float* out) {
    initial_values(*by_name.at(name), config_.model, seed, box, out);
  });
}

void Session::copy_parameters(Session& other) {
  for (const Port& mine : compiled_.plan.states) {
    const Port& theirs = other.executor_->state(mine.name);
    MT_CHECK(mine.begin == theirs.begin && mine.extent == theirs.extent, "layouts of ", mine.name);
    staging_.resize(numel(mine.extent) * size_of(mine.global.dtype));
    other.executor_->read(theirs, staging_.data(), staging_.size());
    executor_->write(mine, staging_.data(), staging_.size());
  }
}

std::vector<ShardOut> Session::shards() {
  std::vector<ShardOut> out;
  auto add = [&](const std::string& state, const std::string& name) {
    const Port& port = executor_->state(state);
    if (!port.owner) return;
    ShardOut shard;
    shard.name = name;
    shard.dtype = DType::kF32;
    shard.global = port.global.shape;
    shard.box = {port.begin, port.extent};
    shard.produce = [this, &port](void* to) {
      executor_->read(port, to, numel(port.extent) * sizeof(float));
    };
    out.push_back(std::move(shard));
  };
  for (const Parameter& p : table_) {
    if (!has_state(p.name)) continue;  // of another stage
    add(has_state(master_name(p.name)) ? master_name(p.name) : p.name, p.name);
    if (!p.trained || !has_state(first_moment_name(p.name))) continue;
    add(first_moment_name(p.name), first_moment_name(p.name));
    add(second_moment_name(p.name), second_moment_name(p.name));
  }
  return out;
}

std::vector<std::pair<std::string, Shape>> Session::checkpoint_states() const {
  std::vector<std::pair<std::string, Shape>> out;
  for (const Parameter& p : table_) {
    out.emplace_back(p.name, p.shape);
    if (!p.trained) continue;
    out.emplace_back(first_moment_name(p.name), p.shape);
    out.emplace_back(second_moment_name(p.name), p.shape);
  }
  return out;
}

void Session::restore(const CheckpointReader& reader) {
  // Imported weights (step 0) come without moments: those start at zero, as in a new run.
  const bool imported =
      reader.step() == 0 && std::none_of(reader.states().begin(), reader.states().end(),
                                         [](const StoredState& s) { return is_moment(s.name); });
  std::vector<StateSpec> expected;
  for (const auto& [name, shape] : checkpoint_states()) {
    if (!imported || !is_moment(name)) expected.push_back({name, DType::kF32, shape});
  }
  reader.check(expected);
  auto read = [&](const std::string& name, const Box& box, float* out) {
    reader.read(name, box, DType::kF32, out);
  };
  for (const Parameter& p : table_) {
    write_parameter(p, read);
    if (imported || !p.trained || !has_state(first_moment_name(p.name))) continue;
    write_state(first_moment_name(p.name), read, first_moment_name(p.name));
    write_state(second_moment_name(p.name), read, second_moment_name(p.name));
  }
}

void Session::feed_scalar(const std::string& name, std::vector<float> values) {
  for (const Port& p : compiled_.plan.inputs) {
    if (p.name == name) executor_->write(p, values.data(), values.size() * sizeof(float));
  }
}

void Session::feed(int64_t first, const FillBatch& fill, int chunk) {
  std::vector<const Port*> wanted;
  for (const Port& port : compiled_.plan.inputs) {
    const int frame = compiled_.plan.slots[port.slot].frame;
    if (port.global.shape.size() == 2 && frame == chunk) wanted.push_back(&port);
  }
  if (wanted.empty()) return;
  const int64_t b0 = wanted[0]->begin[0], nb = wanted[0]->extent[0];
  fill(first + b0, nb, batch_);
  MT_CHECK(batch_.b == nb && batch_.s == options_.sequence, "batch of ", batch_.b, " x ", batch_.s);
  for (const Port* wanted_port : wanted) {
    const Port& port = *wanted_port;
    const auto dot = port.name.find('.');
    const int64_t depth = dot == std::string::npos ? 0 : std::stoll(port.name.substr(dot + 1));
    const std::string kind = port.name.substr(0, dot);
    const void* source = kind == "tokens"   ? static_cast<void*>(batch_.tokens_at(depth))
                         : kind == "labels" ? static_cast<void*>(batch_.labels_at(depth))
                         : kind == "valid"  ? static_cast<void*>(batch_.valid_at(depth))
                         : kind == "pos"    ? static_cast<void*>(batch_.pos.data())
                                            : static_cast<void*>(batch_.doc_start.data());
    const int64_t s = options_.sequence, s0 = port.begin[1], ns = port.extent[1];
    MT_CHECK(port.begin[0] >= b0 && port.begin[0] + port.extent[0] <= b0 + nb, "input '", port.name,
             "' is laid out unlike the others");
    staging_.resize(port.extent[0] * ns * 4);
    for (int64_t b = 0; b < port.extent[0]; ++b) {
      std::memcpy(staging_.data() + b * ns * 4,
                  static_cast<const std::byte*>(source) + ((port.begin[0] - b0 + b) * s + s0) * 4,
                  ns * 4);
    }
    executor_->write(port, staging_.data(), staging_.size());
  }
}

std::vector<float> Session::local_output(const std::string& name) const {
  const Port& port = executor_->output(name);
  const int64_t n = numel(port.global.shape);
  std::vector<std::byte> raw(n * size_of(port.global.dtype));
  executor_->read(port, raw.data(), raw.size());
  const Tensor t{raw.data(), port.global.dtype, port.global.shape};
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(get_element(t, i));
  return out;
}

std::vector<float> Session::output(const std::string& name) const {
  const auto kept = kept_.find({shown_, name});
  if (stages_.count == 1) return kept == kept_.end() ? local_output(name) : kept->second;
  const auto named = std::find_if(graph_.outputs.begin(), graph_.outputs.end(),
                                  [&](const NamedValue& o) { return o.name == name; });
  MT_CHECK(named != graph_.outputs.end(), "no output '", name, "'");
  const int owner = stages_.stage_of(graph_.node(named->value).tag.stage);
  std::string mine;
  if (owner == stage_ && fabric_.rank() % (fabric_.size() / stages_.count) == 0) {
    const std::vector<float> values = kept == kept_.end() ? local_output(name) : kept->second;
    mine.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  const std::string whole = fabric_.gather(mine).at(owner * (fabric_.size() / stages_.count));
  std::vector<float> out(whole.size() / sizeof(float));
  std::memcpy(out.data(), whole.data(), whole.size());
  return out;
}

std::vector<std::pair<std::string, Type>> Session::outputs() const {
  std::vector<std::pair<std::string, Type>> out;
  for (const NamedValue& o : graph_.outputs) out.emplace_back(o.name, graph_.type(o.value));
  return out;
}

const std::vector<Play>& Session::plays(int micro_batches) {
  std::vector<Play>& plays = plays_[micro_batches];
  if (plays.empty()) {
    const PipelineOrder order = config_order(config_, graph_);
    const Timetable t = make_timetable(order, stages_, micro_batches);
    plays = plays_of(compiled_.plan, t.of_stage.at(stage_));
  }
  return plays;
}

void Session::run(const Play& play, int64_t first, const FillBatch& fill) {
  const Segment& segment = compiled_.plan.segments[play.segment];
  executor_->enter(play.frames, play.back_frames);
  if (play.feeds) feed(first + play.micro * options_.batch, fill, segment.chunk);
  executor_->run(segment.name);
}

/// Several micro-batches are in flight, so what one leaves is kept aside until it is asked for.
void Session::keep_outputs(const Play& play) {
  const Segment& segment = compiled_.plan.segments[play.segment];
  for (int side = 0; side < 2; ++side) {
    const int micro = side == 0 ? play.micro : play.back_micro;
    if (micro < 0) break;
    std::set<int> written;
    for (const Instruction& in : segment.instructions) {
      if (in.side != side) continue;
      if (const auto* l = std::get_if<Launch>(&in.what)) {
        written.insert(l->out.begin(), l->out.end());
      } else if (const auto* c = std::get_if<Collective>(&in.what)) {
        written.insert(c->out.begin(), c->out.end());
      }
    }
    executor_->enter(side == 0 ? play.frames : play.back_frames);
    for (const Port& port : compiled_.plan.outputs) {
      int slot = port.slot;  // an output may be another name for what the segment wrote
      while (!written.count(slot) && compiled_.plan.slots[slot].alias >= 0) {
        slot = compiled_.plan.slots[slot].alias;
      }
      if (written.count(slot)) kept_[{micro, port.name}] = local_output(port.name);
    }
  }
}

int64_t Session::planned_bytes() const {
  const Plan& plan = compiled_.plan;
  const KernelMemory kernels = kernel_memory(plan, *device_);
  return plan.state_bytes() + plan.arena_bytes + plan.frame_bytes() + plan.ragged_bytes + kernels.workspace +
         kernels.packed;
}

StepResult Session::train_step(int64_t first, int64_t global_batch,
                               const std::vector<int64_t>& valid, const StepSettings& settings,
                               const FillBatch& fill,
                               const std::function<void(int64_t)>& after_micro_batch) {
  MT_CHECK(global_batch % options_.batch == 0, "global batch ", global_batch);
  const int64_t depths = config_.model.num_nextn_predict_layers;
  auto inverse = [](double n) { return n > 0 ? 1 / n : 0.0; };
  for (int64_t k = 0; k <= depths; ++k) {
    const double weight = settings.poison ? std::nan("")
                          : k == 0        ? 1.0
                                          : settings.mtp_lambda / static_cast<double>(depths);
    feed_scalar(cat("scale.", k), {static_cast<float>(weight * inverse(valid.at(k)))});
  }
  feed_scalar("scale.balance", {static_cast<float>(inverse(global_batch))});
  const double t = static_cast<double>(settings.update);
  feed_scalar("hyper", {static_cast<float>(settings.learning_rate),
                        static_cast<float>(1 - std::pow(options_.update.beta1, t)),
                        static_cast<float>(1 - std::pow(options_.update.beta2, t)), 0.0f});
  feed_scalar("bias_speed", {static_cast<float>(settings.bias_speed)});
  const int count = static_cast<int>(global_batch / options_.batch);
  kept_.clear();
  bool updated = false;
  for (const Play& play : plays(count)) {
    run(play, first, fill);
    updated |= play.updates;
    if (!in_flight_) {
      if (after_micro_batch) after_micro_batch(play.micro);
    } else if (session_options_.dump && (after_micro_batch || play.micro == count - 1)) {
      keep_outputs(play);
    }
  }
  for (shown_ = 0; in_flight_ && after_micro_batch && shown_ < count; ++shown_) {
    after_micro_batch(shown_);
  }
  shown_ = count - 1;
  if (!updated) executor_->run("update");
  numbers_->collect(*executor_, *pipe_);

  StepResult result;
  for (int64_t k = 0; k <= depths; ++k) {
    result.loss_per_depth.push_back(numbers_->scalar(cat("loss_sum.", k)) * inverse(valid[k]));
  }
  result.main_loss = result.loss_per_depth[0];
  for (int64_t k = 1; k <= depths; ++k) {
    result.mtp_loss += result.loss_per_depth[k] / static_cast<double>(depths);
  }
  if (numbers_->has("balance")) result.balance_loss = numbers_->scalar("balance");
  result.loss = result.main_loss + settings.mtp_lambda * result.mtp_loss + result.balance_loss;
  result.grad_norm = numbers_->scalar("grad_norm");
  result.applied = numbers_->scalar("clip_factor") >= 0;
  for (int layer = 0; layer < config_.model.total_layers(); ++layer) {
    if (numbers_->has(layer_output(layer))) {
      result.loads[layer] = numbers_->integers(layer_output(layer));
    }
  }
  return result;
}

std::vector<double> Session::evaluate(int64_t first, int64_t count, const FillBatch& fill) {
  const int64_t depths = config_.model.num_nextn_predict_layers;
  std::vector<double> sums(depths + 1, 0);
  for (int64_t k = 0; k <= depths; ++k) feed_scalar(cat("scale.", k), {1.0f});
  for (const Play& play : plays(static_cast<int>(count / options_.batch))) {
    run(play, first, fill);
    const bool last =
        compiled_.plan.segments[play.segment].chunk == stages_.local(stages_.chunks() - 1);
    if (!last || !executor_->has_output("loss_sum.0")) continue;
    for (int64_t k = 0; k <= depths; ++k) sums[k] += executor_->scalar(cat("loss_sum.", k));
  }
  // Only the stage with the loss has counted; the others add zeros.
  std::vector<std::byte> mine(sums.size() * sizeof(double));
  std::memcpy(mine.data(), sums.data(), mine.size());
  const auto all = pipe_->gather(mine);
  std::fill(sums.begin(), sums.end(), 0.0);
  for (const auto& part : all) {
    std::vector<double> values(sums.size());
    std::memcpy(values.data(), part.data(), part.size());
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += values[k];
  }
  return sums;
}

}  // namespace moetrain
