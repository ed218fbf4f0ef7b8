// Times every token transport on made-up routings.
#include "train/bench_dispatch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "compile/compile.h"
#include "compile/strategy/parallel_options.h"
#include "compile/strategy/strategies.h"
#include "ops/basic.h"
#include "ops/experts.h"
#include "ops/update.h"
#include "runtime/executor.h"
#include "train/bench_tools.h"

namespace moetrain {

namespace {

constexpr const char* kRoutings[] = {"even", "uniform", "skewed", "first"};
enum Routing { kEven, kUniform, kSkewed, kFirst, kRoutingCount };

class DispatchBench {
 public:
  DispatchBench(Fabric& fabric, const BenchDispatchOptions& options)
      : fabric_(fabric), o_(options) {
    const int64_t ranks = fabric.size();
    if (o_.experts % ranks != 0 || o_.top_k < 1 || o_.top_k > o_.experts) {
      throw UserError(cat("bench dispatch: ", o_.experts, " experts with top-k ", o_.top_k,
                          " cannot be spread over ", ranks,
                          " ranks; use a multiple of the ranks, and a top-k up to it"));
    }
    CpuOptions cpu;
    cpu.threads = o_.threads > 0 ? o_.threads : default_threads(fabric);
    device_ = make_cpu_device(cpu);
    parallel_.data = parallel_.expert = static_cast<int>(ranks);
    build();
    text_ = format_line("%lld ranks, %lld tokens of %lld (%s) each, %lld experts, top-%lld; "
                        "dispatch + combine, median of %d\n%-14s %-8s %12s %14s %14s %12s\n",
                        static_cast<long long>(ranks), static_cast<long long>(o_.tokens),
                        static_cast<long long>(o_.hidden), name_of(o_.dtype),
                        static_cast<long long>(o_.experts), static_cast<long long>(o_.top_k),
                        o_.repeats, "transport", "routing", "us", "inter-node B", "intra-node B",
                        "predicted us");
  }

  std::string run() {
    for (Transport transport : kTransports) {
      if (!o_.transport || *o_.transport == transport) time(transport);
    }
    return text_;
  }

 private:
  void build() {
    const int64_t b = fabric_.size(), s = o_.tokens, k = o_.top_k;
    const Value x = ops::input(graph_, "bench.x", o_.dtype, {b, s, o_.hidden});
    const Value idx = ops::input(graph_, "bench.idx", DType::kI32, {b, s, k});
    const Value weight = ops::input(graph_, "bench.weight", DType::kF32, {b, s, k});
    const Scope layer(graph_, "layers.0.", 0);
    const auto rows = ops::dispatch(graph_, x, idx, o_.experts, "moe.dispatch");
    const Value y =
        ops::combine(graph_, rows.rows, rows.plan, weight, idx, o_.dtype, "moe.combine");
    // Kept where it is: an output of the graph would be gathered on every rank.
    const Value kept = ops::state(graph_, "bench.y", o_.dtype, {b, s, o_.hidden});
    graph_.add(ops::kAssign, {kept, y}, {}, "bench.keep");
  }

  /// Expert of a token's slot; different for different slots of one token. Even: anywhere, a token's
  /// choices far apart. Uniform: any set of top-k experts. Skewed: neighbours, half of the tokens on
  /// the first eighth. First: all on the first top-k experts, so on as few ranks as can be.
  int32_t chosen(int routing, int64_t token, int64_t slot) const {
    const int64_t e = o_.experts, k = o_.top_k;
    const CounterRandom random(11, "bench dispatch");
    if (routing == kFirst) return static_cast<int32_t>(slot);
    if (routing == kUniform) {
      std::vector<int64_t> set;
      for (int64_t i = 0; static_cast<int64_t>(set.size()) <= slot; ++i) {
        const auto expert = static_cast<int64_t>(random.bits(token * (1 << 20) + i) % e);
        if (std::find(set.begin(), set.end(), expert) == set.end()) set.push_back(expert);
      }
      return static_cast<int32_t>(set.back());
    }
    const double u = random.uniform(token);
    const bool skewed = routing == kSkewed;
    const auto first = static_cast<int64_t>((skewed ? u * u * u : u) * static_cast<double>(e));
    return static_cast<int32_t>((first + slot * (skewed ? 1 : e / k)) % e);
  }

  float value(int64_t token, int64_t d) const {
    return static_cast<float>((token * 7 + d) % 64) / 64;
  }

  /// This rank's box of an input, which splits sequences only.
  template <class Fill>
  void feed(const Plan& plan, Executor& executor, const std::string& name, Fill fill) {
    for (const Port& port : plan.inputs) {
      if (port.name != name) continue;
      std::vector<std::byte> bytes(numel(port.extent) * size_of(port.global.dtype));
      const Tensor t{bytes.data(), port.global.dtype, port.extent};
      const int64_t width = port.extent[2], per_row = port.extent[1] * width;
      for (int64_t i = 0; i < t.numel(); ++i) {
        const int64_t token = (port.begin[0] + i / per_row) * o_.tokens + port.begin[1] +
                              i % per_row / width;
        fill(t, i, token, port.begin[2] + i % width);
      }
      executor.write(port, bytes.data(), bytes.size());
    }
  }

  void verify(const Plan& plan, const Executor& executor, const char* transport,
              const char* routing) const {
    for (const Port& port : plan.states) {
      if (port.name != "bench.y") continue;
      std::vector<std::byte> bytes(numel(port.extent) * size_of(port.global.dtype));
      executor.read(port, bytes.data(), bytes.size());
      const Tensor t{bytes.data(), port.global.dtype, port.extent};
      const int64_t width = port.extent[2], per_row = port.extent[1] * width;
      for (int64_t i = 0; i < t.numel(); ++i) {
        const int64_t token = (port.begin[0] + i / per_row) * o_.tokens + port.begin[1] +
                              i % per_row / width;
        const float want = value(token, port.begin[2] + i % width);
        MT_CHECK(std::abs(static_cast<float>(get_element(t, i)) - want) < 0.02f, transport, ", ",
                 routing, " routing: token ", token, " came back as ", get_element(t, i),
                 " instead of ", want);
      }
    }
  }

  void time(Transport transport) {
    CompileRequest request;
    request.mesh = build_mesh(parallel_);
    request.rows = strategy_rows(parallel_, graph_);
    LayoutRow inputs;
    inputs.kind = LayoutRow::Kind::kState;
    inputs.pattern = "bench.*";
    inputs.out = {{{"dp"}, {}, {}}};
    inputs.origin = "bench dispatch";
    request.rows.push_back(inputs);
    request.links = o_.links;
    request.links.ranks_per_node = neighbours_of(fabric_);
    request.rank = fabric_.rank();
    request.world = fabric_.size();
    request.dispatch = transport;
    const Compiled compiled = compile(graph_, request);
    // room for all rows on one rank: arenas shall not grow while the clock runs
    Executor executor(compiled.plan, *device_, fabric_, static_cast<double>(fabric_.size()) + 1);
    feed(compiled.plan, executor, "bench.x", [&](const Tensor& t, int64_t i, int64_t token,
                                                  int64_t d) { set_element(t, i, value(token, d)); });
    feed(compiled.plan, executor, "bench.weight",
         [&](const Tensor& t, int64_t i, int64_t, int64_t) {
            set_element(t, i, 1.0 / static_cast<double>(o_.top_k));
         });
    for (int routing = 0; routing < kRoutingCount; ++routing) {
      if (!o_.routing.empty() && o_.routing != kRoutings[routing]) continue;
      feed(compiled.plan, executor, "bench.idx",
           [&](const Tensor& t, int64_t i, int64_t token, int64_t slot) {
             reinterpret_cast<int32_t*>(t.data)[i] = chosen(routing, token, slot);
           });
      executor.run("step");
      const TrafficCounters before = fabric_.traffic();
      executor.run("step");
      const TrafficCounters after = fabric_.traffic();
      const double seconds =
          timed_together(fabric_, o_.repeats, [&] { executor.run("step"); });
      verify(compiled.plan, executor, name_of(transport), kRoutings[routing]);
      const int64_t inter =
          fabric_.max_over_ranks(after.inter_node_bytes - before.inter_node_bytes);
      const int64_t intra =
          fabric_.max_over_ranks(after.intra_node_bytes - before.intra_node_bytes);
      text_ += format_line("%-14s %-8s %12.1f %14lld %14lld %12.1f\n", name_of(transport),
                           kRoutings[routing], seconds * 1e6, static_cast<long long>(inter),
                           static_cast<long long>(intra),
                           2e6 * dispatch_seconds(transport, shape(), request.links));
    }
  }

  DispatchShape shape() const {
    DispatchShape s;
    s.per_node = neighbours_of(fabric_);
    s.nodes = std::max<int64_t>(1, fabric_.size() / s.per_node);
    s.tokens = o_.tokens;
    s.top_k = o_.top_k;
    s.experts = o_.experts;
    s.local_experts = o_.experts / fabric_.size();
    s.row_bytes = o_.hidden * static_cast<int64_t>(size_of(o_.dtype));
    return s;
  }

  Fabric& fabric_;
  const BenchDispatchOptions o_;
  ParallelOptions parallel_;
  std::unique_ptr<Device> device_;
  Graph graph_;
  std::string text_;
};

}  // namespace

std::string bench_dispatch(Fabric& fabric, const BenchDispatchOptions& options) {
  return DispatchBench(fabric, options).run();
}

}  // namespace moetrain
