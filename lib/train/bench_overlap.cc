// A device whose kernels sleep and a fabric whose transfers sleep, under the real scheduler and executor.
#include "train/bench_overlap.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <new>
#include <thread>

#include "compile/place.h"
#include "compile/tape.h"
#include "ops/local.h"
#include "runtime/executor.h"
#include "train/bench_tools.h"

namespace moetrain {

namespace {

using Clock = std::chrono::steady_clock;

void pass_time(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double seconds_of(const Attrs& attrs) { return static_cast<double>(attrs.integer("us")) * 1e-6; }

constexpr double kFlops = 1e9;  // makes the predicted duration of a part the one it has

Cost part_cost(const Attrs& attrs, std::span<const Type>, std::span<const Type>) {
  return {seconds_of(attrs) * kFlops, 0, 0};
}

const OpDef kPart{"part", nullptr, nullptr, nullptr, part_cost, nullptr};

class SleepingDevice : public Device {
 public:
  std::string describe() const override { return "parts of known length"; }
  std::byte* allocate(size_t bytes, const std::string&) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
  }
  void release(std::byte* memory) override { ::operator delete(memory, std::align_val_t{64}); }
  Lane& lane(int index) override { return host(index); }
  void mark(double& seconds, Lane& lane) override {
    static_cast<HostLane&>(lane).post([&seconds] {
      seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    });
  }
  KernelChoice choose(const OpDef&, const Attrs&, std::span<const Type>, std::span<const Type>) override {
    return {};
  }
  void launch(const KernelChoice&, const OpDef&, const Attrs& attrs, std::span<const Tensor>,
              std::span<Tensor>, std::byte*, Lane& lane) override {
    static_cast<HostLane&>(lane).post([seconds = seconds_of(attrs)] { pass_time(seconds); });
  }
  void copy_in(void*, const void*, size_t, Lane&) override {}
  void copy_out(void*, const void*, size_t, Lane&) override {}
  void copy(void*, const void*, size_t, Lane&) override {}

 private:
  HostLane& host(int index) {
    std::unique_ptr<HostLane>& lane = lanes_[index];
    if (!lane) lane = index == kComputeLane ? make_inline_lane() : make_threaded_lane();
    return *lane;
  }
  std::map<int, std::unique_ptr<HostLane>> lanes_;
};

/// One end of an artificial link: every exchange takes the same time. Its data are nobody's.
class SleepingGroup : public Communicator {
 public:
  explicit SleepingGroup(double seconds) : seconds_(seconds) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_gather(const void*, void*, int64_t, Lane& lane) override { take(lane); }
  void reduce_scatter(const void*, void*, int64_t, DType, ReduceOp, Lane& lane) override { take(lane); }
  void all_reduce(void*, int64_t, DType, ReduceOp, Lane& lane) override { take(lane); }
  void all_to_all(const void*, void*, int64_t, Lane& lane) override { take(lane); }
  void all_to_all_v(const void*, const std::vector<int64_t>&, void*, const std::vector<int64_t>&,
                    Lane& lane) override {
    take(lane);
  }
  void send(const void*, int64_t, int, Lane& lane) override { take(lane); }
  void recv(void*, int64_t, int, Lane& lane) override { take(lane); }
  void barrier(Lane& lane) override { take(lane); }

 private:
  void take(Lane& lane) {
    static_cast<HostLane&>(lane).post([seconds = seconds_] { pass_time(seconds); });
  }
  double seconds_;
};

class SleepingFabric : public Fabric {
 public:
  explicit SleepingFabric(double seconds) : seconds_(seconds) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int node_of(int) const override { return 0; }
  std::unique_ptr<Communicator> make_group(const std::vector<int>&, const std::string&) override {
    return std::make_unique<SleepingGroup>(seconds_);
  }
  void barrier() override {}
  std::vector<std::string> gather(const std::string& mine) override { return {mine, mine}; }
  std::string broadcast(const std::string& value) override { return value; }
  int64_t max_over_ranks(int64_t value) override { return value; }
  TrafficCounters traffic() const override { return {}; }
  [[noreturn]] void abort(const std::string& message, int code) override {
    throw JobAborted(message, code);
  }

 private:
  double seconds_;
};

/// Writes a segment's work as chains of slots.
class Passes {
 public:
  Passes(Plan& plan, const BenchOverlapOptions& o) : plan_(plan), o_(o) {}

  SegmentWork forward() {
    SegmentWork work{"F.0", 0, {}, {}};
    int value = -1;
    for (int l = 0; l < o_.layers; ++l) {
      value = part(work, "attention", o_.attention, value);
      value = transfer(work, "dispatch", value);
      value = part(work, "experts", o_.experts, value);
      value = transfer(work, "combine", value);
    }
    return work;
  }

  SegmentWork backward() {
    SegmentWork work{"B.0", 0, {}, {}};
    int value = part(work, "loss", 0, -1);
    for (int l = 0; l < o_.layers; ++l) {
      const int rows = transfer(work, "combine.grad", value);
      value = part(work, "experts.grad", o_.experts_back, rows);
      part(work, "experts.weights", o_.experts_weight, rows);
      const int back = transfer(work, "dispatch.grad", value);
      value = part(work, "attention.grad", o_.attention_back, back);
      part(work, "attention.weights", o_.attention_weight, back);
    }
    return work;
  }

 private:
  int slot() {
    Slot slot;
    slot.type = {DType::kF32, {16}, false};
    slot.bytes = 64;
    plan_.slots.push_back(slot);
    return static_cast<int>(plan_.slots.size()) - 1;
  }
  int add(SegmentWork& work, const char* name, Instruction instruction) {
    instruction.name = name;
    work.work.push_back(std::move(instruction));
    return static_cast<int>(plan_.slots.size()) - 1;
  }
  int part(SegmentWork& work, const char* name, double ms, int in) {
    Instruction instruction;
    Launch launch{&kPart, {{"us", static_cast<int64_t>(std::llround(ms * 1e3))}}, {}, {slot()}};
    if (in >= 0) launch.in.push_back(in);
    instruction.what = std::move(launch);
    return add(work, name, std::move(instruction));
  }
  int transfer(SegmentWork& work, const char* name, int in) {
    Instruction instruction;
    instruction.what = Collective{&ops::kAllToAll, {}, {in}, {slot()}, 0};
    return add(work, name, std::move(instruction));
  }

  Plan& plan_;
  const BenchOverlapOptions& o_;
};

}  // namespace

OverlapReport bench_overlap(const BenchOverlapOptions& o) {
  LinkModel links;
  links.fp32_flops = kFlops;
  links.intra_latency = o.transfer * 1e-3;
  links.intra_bandwidth = 1e18;
  links.ranks_per_node = 2;
  Plan plan;
  plan.world = 2;
  plan.groups = {{"link", {0, 1}}};
  Passes passes(plan, o);
  const std::vector<SegmentWork> work = {passes.forward(), passes.backward()};
  const OverlapOptions overlap{true, int64_t{1} << 30};
  const TapeWriter tapes(plan, links, overlap, work), inline_tapes(plan, links, {}, work);
  for (const SegmentWork& segment : work) inline_tapes.write(segment);
  place_frames(plan);
  tapes.write_merged({0, 1});
  merge_frames(plan);
  place_arena(plan);

  SleepingDevice device;
  SleepingFabric fabric(o.transfer * 1e-3);
  Executor executor(plan, device, fabric);
  std::vector<double> apart, merged, exposed;
  for (int i = 0; i < o.repeats; ++i) {
    auto timed = [&](auto run) {
      const auto begin = Clock::now();
      run();
      return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / o.layers;
    };
    apart.push_back(timed([&] { executor.run("F.0"), executor.run("B.0"); }));
    executor.take_comm_seconds();
    merged.push_back(timed([&] { executor.run("F.0|B.0"); }));
    CommSeconds sum;
    for (const auto& [kind, seconds] : executor.take_comm_seconds()) {
      sum.total += seconds.total;
      sum.exposed += seconds.exposed;
    }
    exposed.push_back(sum.exposed / sum.total);
  }
  OverlapReport report;
  report.apart = median(apart);
  report.merged = median(merged);
  report.exposed = median(exposed);
  const double compute = o.attention + o.experts + o.experts_back + o.experts_weight +
                         o.attention_back + o.attention_weight;
  report.ideal = std::max(compute, 4 * o.transfer);
  report.text = format_line("one MoE layer of %d, a forward pass beside a backward pass, parts of known "
                            "length, transfers of %.1f ms over an artificial link\n", o.layers, o.transfer);
  report.text += format_line("%-34s %8.2f ms a layer (parts and transfers: %.2f)\n",
                             "one after the other", report.apart, compute + 4 * o.transfer);
  report.text += format_line("%-34s %8.2f ms a layer (everything hidden: %.2f)\n", "merged",
                             report.merged, report.ideal);
  report.text += format_line("%-34s %8.1f %% of transfer time\n", "exposed", 100 * report.exposed);
  return report;
}

}  // namespace moetrain
