// Playing a plan.
#include "runtime/executor.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "ops/local.h"
#include "ops/pipe.h"
#include "ops/update.h"

namespace moetrain {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

/// One instruction with everything resolved that does not change from run to run.
struct Executor::Prepared {
  KernelChoice kernel;
  std::vector<Tensor> in, out;
  std::vector<int> moving_in, moving_out;  // positions whose address or rows change per run
  int clears = -1;                         // root slot whose clearing may wait
  std::vector<int> touches;                // other root slots that may only count as zero
  std::optional<Overwrite> overwrite;      // what to launch where a state only counts as zero
  KernelChoice overwrite_kernel;
  Executed times;  // of the last run; a lane's thread writes begin and end of what it runs
};

/// What belongs to one micro-batch in flight on one chunk.
struct Executor::Frame {
  std::byte* memory = nullptr;
  std::vector<int64_t> rows;                                      // per extent
  std::map<int, std::byte*> row_buffers;                          // per root slot
  std::map<int, std::vector<std::vector<int32_t>>> host_counts;  // per bind slot
};

Executor::Executor(const Plan& plan, Device& device, Fabric& fabric, double ragged_headroom)
    : plan_(plan), device_(device), fabric_(fabric), base_(plan.slots.size(), nullptr),
      rows_(plan.extents.size(), 0) {
  auto own = [&](int64_t bytes, const std::string& what) {
    std::byte* memory = device_.allocate(static_cast<size_t>(bytes), what);
    owned_.push_back(memory);
    owned_bytes_ += bytes;
    return memory;
  };
  if (plan.arena_bytes > 0) arena_ = own(plan.arena_bytes, "activations");
  int64_t fixed = 0;
  auto stays = [](const Slot& s) {
    return s.alias < 0 &&
           (s.home == Home::kState || s.home == Home::kOutput ||
            (s.home == Home::kInput && s.frame < 0));
  };
  for (const Slot& s : plan.slots) {
    if (stays(s)) fixed += (s.bytes + 63) / 64 * 64;
  }
  std::byte* at = fixed > 0 ? own(fixed, "states, inputs and outputs") : nullptr;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& s = plan.slots[i];
    if (stays(s)) {
      base_[i] = at;
      at += (s.bytes + 63) / 64 * 64;
    } else if (s.home == Home::kArena && s.alias < 0) {
      base_[i] = arena_ + s.offset;
    }
  }
  // Tiny models get what they can need at worst: balance means little with a handful of rows.
  constexpr int64_t kSmall = int64_t{4} << 20;
  frames_.resize(plan.frames.size());
  for (auto& side : entered_) side.assign(plan.frames.size(), 0);
  for (size_t g = 0; g < plan.frames.size(); ++g) {
    for (int i = 0; i < plan.frames[g].count; ++i) {
      auto made = std::make_unique<Frame>();
      made->rows.resize(plan.extents.size(), 0);
      if (plan.frames[g].bytes > 0) made->memory = own(plan.frames[g].bytes, "micro-batch in flight");
      frames_[g].push_back(std::move(made));
    }
  }
  row_arena_ = std::make_unique<RowArena>(
      device_, std::max(static_cast<int64_t>(static_cast<double>(plan.ragged_bytes) *
                                             ragged_headroom),
                        std::min(plan.ragged_bytes_worst, kSmall)));
  for (const RankGroup& group : plan.groups) {
    groups_.push_back(fabric_.make_group(group.ranks, group.name));
  }
  zero_ = std::make_unique<ZeroStates>(plan, device_, base_);
  for (const Segment& segment : plan.segments) prepare(segment, prepared_[segment.name]);
  if (workspace_bytes_ > 0) {
    workspace_ = own(static_cast<int64_t>(workspace_bytes_), "kernel workspace");
  }
  for (const Port& p : plan.states) states_[p.name] = &p;
  for (const Port& p : plan.inputs) inputs_[p.name] = &p;
  for (const Port& p : plan.outputs) outputs_[p.name] = &p;
}

Executor::~Executor() {
  for (std::byte* memory : owned_) device_.release(memory);
}

Executor::Frame& Executor::frame(int group, int side) const {
  return *frames_[group][entered_[side][group]];
}

void Executor::enter(const std::vector<int>& frames, const std::vector<int>& back_frames) {
  for (int side = 0; side < 2; ++side) {
    const std::vector<int>& mine = side == 0 ? frames : back_frames;
    if (side == 1 && mine.empty()) return;
    MT_CHECK(mine.size() == frames_.size(), "frames of ", mine.size(), " groups");
    for (size_t g = 0; g < mine.size(); ++g) {
      MT_CHECK(mine[g] >= 0 && mine[g] < static_cast<int>(frames_[g].size()), "frame ", mine[g],
               " of group ", g, ", which has ", frames_[g].size());
    }
    entered_[side] = mine;
  }
}

std::byte* Executor::address(int slot, int side) const {
  const int at = root_slot(plan_, slot);
  const Slot& s = plan_.slots[at];
  if (s.frame < 0) return base_[at];
  const Frame& f = frame(s.frame, side);
  if (s.home != Home::kRagged) return f.memory + s.offset;
  const auto rows = f.row_buffers.find(at);
  return rows == f.row_buffers.end() ? nullptr : rows->second;
}

Tensor Executor::tensor(int slot, int side) const {
  const Slot& s = plan_.slots[slot];
  Tensor t{address(slot, side), s.type.dtype, s.type.shape};
  if (s.type.ragged) {
    t.shape.erase(t.shape.begin());
    t.shape[0] = s.extent >= 0 ? frame(plan_.extents[s.extent].frame, side).rows[s.extent] : 0;
  }
  return t;
}

void Executor::prepare(const Segment& segment, std::vector<Prepared>& out) {
  out.resize(segment.instructions.size());
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const Instruction& instruction = segment.instructions[i];
    Prepared& p = out[i];
    const std::vector<int>*in = nullptr, *results = nullptr;
    if (const auto* l = std::get_if<Launch>(&instruction.what)) {
      std::vector<Type> in_types, out_types;
      for (int s : l->in) in_types.push_back(plan_.slots[s].type);
      for (int s : l->out) out_types.push_back(plan_.slots[s].type);
      p.kernel = device_.choose(*l->op, l->attrs, in_types, out_types);
      workspace_bytes_ = std::max(workspace_bytes_, p.kernel.workspace_bytes);
      keep_weights(*l, p.kernel);
      in = &l->in;
      results = &l->out;
    } else if (const auto* c = std::get_if<Collective>(&instruction.what)) {
      in = &c->in;
      results = &c->out;
    } else {
      continue;
    }
    prepare_zero_states(instruction, p);
    for (size_t k = 0; k < in->size(); ++k) {
      p.in.push_back(tensor((*in)[k]));
      if (plan_.slots[(*in)[k]].frame >= 0) p.moving_in.push_back(static_cast<int>(k));
    }
    for (size_t k = 0; k < results->size(); ++k) {
      p.out.push_back(tensor((*results)[k]));
      if (plan_.slots[(*results)[k]].frame >= 0) p.moving_out.push_back(static_cast<int>(k));
    }
  }
}

/// Notes what an instruction does with states whose clearing may wait.
void Executor::prepare_zero_states(const Instruction& instruction, Prepared& p) {
  const auto* l = std::get_if<Launch>(&instruction.what);
  const auto* c = std::get_if<Collective>(&instruction.what);
  std::vector<int> own;
  if (l && l->op == &ops::kClear && zero_->may_wait(root_slot(plan_, l->out[0]))) {
    p.clears = root_slot(plan_, l->out[0]);
    own = {p.clears};
  }
  if (l && (p.overwrite = overwriting(*l, plan_))) {
    for (int& s : p.overwrite->states) s = root_slot(plan_, s);
    own = p.overwrite->states;
    if (std::any_of(own.begin(), own.end(), [&](int s) { return zero_->may_wait(s); })) {
      std::vector<Type> in, out;
      for (size_t k = 0; k < p.overwrite->operands; ++k) in.push_back(plan_.slots[l->in[k]].type);
      for (int s : l->out) out.push_back(plan_.slots[s].type);
      p.overwrite_kernel = device_.choose(*p.overwrite->op, p.overwrite->attrs, in, out);
      workspace_bytes_ = std::max(workspace_bytes_, p.overwrite_kernel.workspace_bytes);
    } else {
      p.overwrite.reset();
    }
  }
  for (const std::vector<int>* slots : {l ? &l->in : &c->in, l ? &l->out : &c->out}) {
    for (int s : *slots) {
      const bool mine = std::find(own.begin(), own.end(), root_slot(plan_, s)) != own.end();
      if (!mine && zero_->may_wait(root_slot(plan_, s))) p.touches.push_back(root_slot(plan_, s));
    }
  }
}

/// Lets the device keep the operands of a launch that are states.
void Executor::keep_weights(const Launch& launch, const KernelChoice& kernel) {
  const int64_t rows = expected_rows(plan_, launch);
  for (size_t i = 0; i < launch.in.size(); ++i) {
    if (plan_.slots[root_slot(plan_, launch.in[i])].home == Home::kState)
      owned_bytes_ += device_.keep(kernel, launch.attrs, i, tensor(launch.in[i]), rows);
  }
}

void Executor::run(const std::string& name) {
  const Segment& segment = plan_.segment(name);
  std::vector<Prepared>& prepared = prepared_.at(name);
  std::vector<Event> events(segment.instructions.size());
  bool used[kLaneCount] = {};
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const Instruction& instruction = segment.instructions[i];
    Prepared& p = prepared[i];
    Lane& lane = device_.lane(instruction.lane);
    used[instruction.lane] = true;
    p.times.exposed = 0;
    double begin = now();
    for (int w : instruction.waits) {
      lane.wait(events[w]);
      if (instruction.lane != kComputeLane) continue;
      const double end = now();
      prepared[w].times.exposed += end - begin;
      begin = end;
    }
    if (instruction.lane == kComputeLane) {
      p.times.begin = begin;
      issue(instruction, p, lane);
      p.times.end = now();
      if (std::holds_alternative<Collective>(instruction.what)) {
        p.times.exposed += p.times.end - begin;
      }
    } else {
      device_.mark(p.times.begin, lane);
      issue(instruction, p, lane);
      device_.mark(p.times.end, lane);
    }
    events[i] = lane.record();
  }
  for (int lane = 0; lane < kLaneCount; ++lane) {
    if (!used[lane]) continue;
    const double begin = now();
    device_.lane(lane).synchronize();
    if (lane == kComputeLane) continue;
    for (size_t i = segment.instructions.size(); i-- > 0;) {  // the last one of the lane is waited for
      if (segment.instructions[i].lane != lane) continue;
      prepared[i].times.exposed += now() - begin;
      break;
    }
  }
  account(segment, prepared);
}

/// Tells the observer and adds up the communication of one run.
void Executor::account(const Segment& segment, const std::vector<Prepared>& prepared) {
  for (size_t i = 0; i < prepared.size(); ++i) {
    const Instruction& instruction = segment.instructions[i];
    const Executed& times = prepared[i].times;
    if (const auto* c = std::get_if<Collective>(&instruction.what)) {
      const std::string& group = plan_.groups[c->group].name;
      // Streams between stages are many; together they are one kind.
      CommSeconds& sum = comm_seconds_[ops::is_transfer(*c->op) ? std::string(c->op->name)
                                                                : cat(c->op->name, " ", group)];
      sum.total += times.end - times.begin;
      sum.exposed += times.exposed;
    }
    if (observer_) observer_->ran(segment, instruction, times);
  }
}

void Executor::issue(const Instruction& instruction, Prepared& p, Lane& lane) {
  const int side = instruction.side;
  auto refresh = [&](const std::vector<int>& slots, const std::vector<int>& moving,
                     std::vector<Tensor>& tensors) {
    for (int k : moving) {
      tensors[k].data = address(slots[k], side);
      const Slot& s = plan_.slots[slots[k]];
      if (s.type.ragged) tensors[k].shape[0] = frame(s.frame, side).rows[s.extent];
    }
  };
  for (int s : p.touches) zero_->settle(s, lane);
  if (const auto* l = std::get_if<Launch>(&instruction.what)) {
    refresh(l->in, p.moving_in, p.in);
    refresh(l->out, p.moving_out, p.out);
    launch(*l, p, lane);
  } else if (const auto* c = std::get_if<Collective>(&instruction.what)) {
    refresh(c->in, p.moving_in, p.in);
    refresh(c->out, p.moving_out, p.out);
    run_collective(*c, p, side, lane);
  } else if (const auto* b = std::get_if<Bind>(&instruction.what)) {
    run_bind(*b, side, lane);
  } else if (const auto* a = std::get_if<Alloc>(&instruction.what)) {
    const Slot& s = plan_.slots[a->slot];
    int64_t row = static_cast<int64_t>(size_of(s.type.dtype));
    for (size_t d = 2; d < s.type.shape.size(); ++d) row *= s.type.shape[d];
    Frame& f = frame(s.frame, side);
    f.row_buffers[a->slot] = row_arena_->allocate(f.rows[s.extent] * row);
    growths_ = row_arena_->growths();
  } else if (const auto* f = std::get_if<Free>(&instruction.what)) {
    auto& buffers = frame(plan_.slots[f->slot].frame, side).row_buffers;
    row_arena_->release(buffers.at(f->slot));
    buffers.erase(f->slot);
  }
}

void Executor::launch(const Launch& launch, Prepared& p, Lane& lane) {
  if (p.clears >= 0) return zero_->clear(p.clears);
  if (p.overwrite && zero_->take(p.overwrite->states, lane)) {
    const Overwrite& o = *p.overwrite;
    return device_.launch(p.overwrite_kernel, *o.op, o.attrs, std::span(p.in).first(o.operands), p.out,
                          workspace_, lane);
  }
  device_.launch(p.kernel, *launch.op, launch.attrs, p.in, p.out, workspace_, lane);
}

void Executor::run_bind(const Bind& bind, int side, Lane& lane) {
  Frame& f = frame(plan_.slots[bind.host].frame, side);
  auto& counts = f.host_counts[bind.host];
  counts.resize(bind.counts.size());
  for (size_t k = 0; k < bind.counts.size(); ++k) {
    const Tensor t = tensor(bind.counts[k], side);
    counts[k].resize(t.numel());
    device_.copy_out(counts[k].data(), t.data, t.bytes(), lane);
  }
  lane.synchronize();
  for (size_t k = 0; k < counts.size(); ++k) {
    int64_t rows = 0;
    for (int32_t c : counts[k]) rows += c;
    rows_[bind.extents[k]] = f.rows[bind.extents[k]] = rows;
  }
}

void Executor::run_collective(const Collective& c, const Prepared& p, int side, Lane& lane) {
  Communicator& group = *groups_[c.group];
  if (c.op == &ops::kSend) return group.send(p.in[0].data, p.in[0].bytes(), 1, lane);
  if (c.op == &ops::kRecv) device_.changed(p.out[0].data, p.out[0].bytes());
  if (c.op == &ops::kRecv) return group.recv(p.out[0].data, p.out[0].bytes(), 0, lane);
  const Tensor& in = p.in[0];
  const Tensor& out = p.out[0];
  const int64_t members = group.size();
  device_.changed(out.data, out.bytes());
  const ReduceOp reduce = c.attrs.integer_or("maximum", 0) ? ReduceOp::kMax : ReduceOp::kSum;
  if (c.op == &ops::kAllGather) {
    group.all_gather(in.data, out.data, in.bytes(), lane);
  } else if (c.op == &ops::kReduceScatter) {
    group.reduce_scatter(in.data, out.data, out.numel(), in.dtype, reduce, lane);
  } else if (c.op == &ops::kAllReduce) {
    device_.copy(out.data, in.data, in.bytes(), lane);
    group.all_reduce(out.data, out.numel(), out.dtype, reduce, lane);
  } else if (c.op == &ops::kAllToAll) {
    group.all_to_all(in.data, out.data, in.bytes() / members, lane);
  } else if (c.op == &ops::kExchange) {
    group.all_to_all_v(in.data, c.attrs.integers("send_bytes"), out.data,
                       c.attrs.integers("recv_bytes"), lane);
  } else if (c.op == &ops::kRowsAllToAll) {
    const int host = c.in.back();
    const auto& counts = frame(plan_.slots[host].frame, side).host_counts.at(host);
    int64_t row = static_cast<int64_t>(size_of(in.dtype));
    for (size_t d = 1; d < in.shape.size(); ++d) row *= in.shape[d];
    auto bytes_per_member = [&](const std::vector<int32_t>& table) {
      std::vector<int64_t> bytes(members, 0);
      const size_t experts = table.size() / members;
      for (size_t i = 0; i < table.size(); ++i) bytes[i / experts] += table[i] * row;
      return bytes;
    };
    const std::vector<int64_t> sent = bytes_per_member(counts[c.attrs.integer("send")]);
    row_traffic_[plan_.slots[c.out[0]].name] +=
        exchange_traffic(plan_.groups[c.group].ranks, plan_.rank,
                         [this](int rank) { return fabric_.node_of(rank); }, sent);
    group.all_to_all_v(in.data, sent, out.data,
                       bytes_per_member(counts[c.attrs.integer("recv")]), lane);
  } else {
    MT_CHECK(false, "collective ", c.op->name, " has no verb");
  }
}

void Executor::write(const Port& port, const void* host, size_t bytes) {
  MT_CHECK(bytes == static_cast<size_t>(plan_.slots[port.slot].bytes), "writing ", port.name, ": ",
           bytes, " bytes into ", plan_.slots[port.slot].bytes);
  Lane& lane = device_.lane(kComputeLane);
  zero_->settle(root_slot(plan_, port.slot), lane);
  device_.copy_in(address(port.slot), host, bytes, lane);
  lane.synchronize();
}

void Executor::read(const Port& port, void* host, size_t bytes) const {
  MT_CHECK(bytes == static_cast<size_t>(plan_.slots[port.slot].bytes), "reading ", port.name);
  Lane& lane = device_.lane(kComputeLane);
  zero_->settle(root_slot(plan_, port.slot), lane);
  device_.copy_out(host, address(port.slot), bytes, lane);
  lane.synchronize();
}

void Executor::clear(const Port& port) {
  if (zero_->may_wait(root_slot(plan_, port.slot))) return zero_->clear(root_slot(plan_, port.slot));
  const std::vector<std::byte> zeros(plan_.slots[port.slot].bytes);
  write(port, zeros.data(), zeros.size());
}

namespace {

const Port& find(const std::map<std::string, const Port*>& ports, const std::string& name) {
  auto at = ports.find(name);
  MT_CHECK(at != ports.end(), "the plan has no '", name, "'");
  return *at->second;
}

}  // namespace

const Port& Executor::state(const std::string& name) const { return find(states_, name); }
const Port& Executor::input(const std::string& name) const { return find(inputs_, name); }
const Port& Executor::output(const std::string& name) const { return find(outputs_, name); }

double Executor::scalar(const std::string& name) const {
  const Port& port = output(name);
  const Slot& slot = plan_.slots[port.slot];
  std::vector<std::byte> bytes(slot.bytes);
  read(port, bytes.data(), bytes.size());
  return get_element({bytes.data(), slot.type.dtype, slot.type.shape}, 0);
}

int64_t Executor::memory_bytes() const { return owned_bytes_ + row_arena_->capacity(); }

std::map<std::string, CommSeconds> Executor::take_comm_seconds() {
  return std::exchange(comm_seconds_, {});
}

}  // namespace moetrain
