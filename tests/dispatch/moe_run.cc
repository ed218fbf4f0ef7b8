// Builds, compiles and runs the little mixture-of-experts graph of the dispatch tests.
#include "dispatch/moe_run.h"

#include <cstring>

#include "base/error.h"
#include "ops/basic.h"
#include "ops/experts.h"
#include "runtime/device/device.h"
#include "runtime/executor.h"

namespace moetrain::dispatch_test {

MoeMesh flat_mesh(int ranks, int ranks_per_node) {
  MoeMesh m;
  m.mesh.atoms = {{"ep", ranks}};
  m.mesh.names = {{"ep", {0}}};
  m.ranks_per_node = ranks_per_node;
  m.expert_axes = m.batch_axes = {"ep"};
  return m;
}

Graph moe_graph(const MoeCase& c) {
  Graph g;
  g.tag.layer = 0;
  const Value x = ops::input(g, "x", c.dtype, {c.b, c.s, c.h});
  const Value idx = ops::input(g, "idx", DType::kI32, {c.b, c.s, c.k});
  const Value weight = ops::input(g, "weight", DType::kF32, {c.b, c.s, c.k});
  const Value w = ops::input(g, "w", c.dtype, {c.experts, c.h, c.h});
  const Value dy = ops::input(g, "dy", c.dtype, {c.b, c.s, c.h});
  const auto d = ops::dispatch(g, x, idx, c.experts, "moe.dispatch");
  const Value rows = ops::grouped_matmul(g, d.rows, w, d.plan, "moe.experts");
  const Value y = ops::combine(g, rows, d.plan, weight, idx, c.dtype, "moe.combine");
  g.mark_output("y", y);
  g.tag.phase = Phase::kBackward;
  auto backward = [&](Value of, Value cotangent) {
    std::vector<Value> seeds(g.nodes[of.node].outputs.size());
    seeds[of.output] = cotangent;
    g.forward_of = of.node;
    g.scope = g.nodes[of.node].name + ".";
    return g.nodes[of.node].op->vjp(g, of.node, seeds);
  };
  const std::vector<Value> dcombine = backward(y, dy);
  const std::vector<Value> dproduct = backward(rows, dcombine[0]);
  const std::vector<Value> ddispatch = backward(d.rows, dproduct[0]);
  g.mark_output("dweight", dcombine[2]);
  g.mark_output("dw", dproduct[1]);
  g.mark_output("dx", ddispatch[0]);
  return g;
}

namespace {

LayoutRow layout(const std::string& name, std::vector<std::vector<std::string>> dims) {
  LayoutRow row;
  row.kind = LayoutRow::Kind::kState;
  row.pattern = name;
  row.out = {std::move(dims)};
  row.origin = "test";
  return row;
}

LayoutRow factors(const std::string& op, std::map<char, std::vector<std::string>> axes) {
  LayoutRow row;
  row.pattern = op;
  row.factors = std::move(axes);
  row.origin = "test";
  return row;
}

std::vector<std::byte> bytes_of(const MoeCase& c, const std::string& name) {
  std::vector<std::byte> out;
  if (name == "idx" || name == "weight") {
    out.resize(c.idx.size() * 4);
    std::memcpy(out.data(),
                name == "idx" ? static_cast<const void*>(c.idx.data()) : c.weight.data(),
                out.size());
    return out;
  }
  const std::vector<float>& values = name == "x" ? c.x : name == "w" ? c.w : c.dy;
  out.resize(values.size() * size_of(c.dtype));
  const Tensor t{out.data(), c.dtype, {static_cast<int64_t>(values.size())}};
  for (size_t i = 0; i < values.size(); ++i) set_element(t, static_cast<int64_t>(i), values[i]);
  return out;
}

/// Feeds a rank's box of an input; boxes are whole but for the first two dims.
void feed(Executor& executor, const Port& port, const std::vector<std::byte>& whole) {
  const Shape& shape = port.global.shape;
  const int64_t row =
      numel(shape) / (shape[0] * shape[1]) * static_cast<int64_t>(size_of(port.global.dtype));
  std::vector<std::byte> part;
  for (int64_t b = 0; b < port.extent[0]; ++b) {
    const int64_t at = ((port.begin[0] + b) * shape[1] + port.begin[1]) * row;
    part.insert(part.end(), whole.begin() + at, whole.begin() + at + port.extent[1] * row);
  }
  executor.write(port, part.data(), part.size());
}

}  // namespace

Compiled compile_moe(const MoeCase& c, const MoeMesh& m, int rank,
                     std::optional<Transport> transport, const LinkModel& links) {
  CompileRequest request;
  request.mesh = m.mesh;
  request.links = links;
  if (m.ranks_per_node > 0) request.links.ranks_per_node = m.ranks_per_node;
  request.rank = rank;
  request.world = m.mesh.size();
  request.dispatch = transport;
  if (request.world > 1) {
    for (const char* input : {"x", "idx", "weight", "dy"}) {
      request.rows.push_back(layout(input, {m.batch_axes, {}, {}}));
    }
    request.rows.push_back(layout("w", {m.expert_axes, {}, {}}));
    for (const char* op : {"moe.dispatch", "moe.combine"}) {
      request.rows.push_back(factors(op, {{'e', m.expert_axes}, {'b', m.batch_axes}}));
    }
    request.rows.push_back(factors("moe.experts", {{'e', m.expert_axes}}));
  }
  return compile(moe_graph(c), request);
}

MoeResult run_moe(const MoeCase& c, const MoeMesh& m, std::optional<Transport> transport) {
  const int world = m.mesh.size();
  MoeResult result;
  result.traffic.resize(world);
  result.rows.resize(world);
  for (int r = 0; r < world; ++r) {
    Compiled compiled = compile_moe(c, m, r, transport);
    result.plans.push_back(std::move(compiled.plan));
    result.locals.push_back(std::move(compiled.local));
  }
  run_local_ranks(world, m.ranks_per_node, [&](Fabric& fabric) {
    const Plan& plan = result.plans[fabric.rank()];
    CpuOptions options;
    options.threads = fabric.rank() % 2 + 1;
    const auto device = make_cpu_device(options);
    Executor executor(plan, *device, fabric);
    for (const Port& port : plan.inputs) feed(executor, port, bytes_of(c, port.name));
    const TrafficCounters before = fabric.traffic();
    for (const Segment& segment : plan.segments) executor.run(segment.name);
    const TrafficCounters after = fabric.traffic();
    result.traffic[fabric.rank()] = {after.inter_node_bytes - before.inter_node_bytes,
                                     after.intra_node_bytes - before.intra_node_bytes,
                                     after.inter_node_messages - before.inter_node_messages,
                                     after.intra_node_messages - before.intra_node_messages};
    result.rows[fabric.rank()] = executor.row_traffic();
    if (fabric.rank() != 0) return;
    for (const Port& port : plan.outputs) {
      std::vector<std::byte> raw(numel(port.global.shape) * size_of(port.global.dtype));
      executor.read(port, raw.data(), raw.size());
      const Tensor t{raw.data(), port.global.dtype, port.global.shape};
      std::vector<float>& values = result.outputs[port.name];
      for (int64_t i = 0; i < t.numel(); ++i) {
        values.push_back(static_cast<float>(get_element(t, i)));
      }
    }
  });
  return result;
}

MoeResult run_whole(const MoeCase& c) { return run_moe(c, flat_mesh(1, 1), std::nullopt); }

}  // namespace moetrain::dispatch_test
