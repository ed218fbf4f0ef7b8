// Everything after the backward pass of a step: accumulation, norm, clip, AdamW, bias, metrics.
#include "base/error.h"
#include "model/builder.h"
#include "ops/autodiff.h"
#include "ops/basic.h"
#include "ops/settle.h"
#include "ops/update.h"

namespace moetrain {

namespace {

struct Accumulated {
  std::string name;
  Value value;
};

/// Phase and scope of the nodes that follow.
void enter(Graph& g, Phase phase, int layer = -1) {
  g.tag.phase = phase;
  g.tag.layer = layer;
}

}  // namespace

void build_update(Builder& b, const std::vector<Value>& loss_sums, Value balance, Value loss) {
  Graph& g = b.g;
  const UpdateOptions& u = b.options.update;
  std::vector<const Parameter*> trained;
  std::vector<Value> wrt;
  for (const Parameter& p : b.table) {
    if (!p.trained) continue;
    trained.push_back(&p);
    wrt.push_back(b.param(p.name));
  }
  const std::vector<Value> grads = gradients(g, loss, wrt);

  // Sums over micro-batches. They are states and may stay partial until the update.
  std::vector<Accumulated> sums, loads;
  auto accumulate = [&](const std::string& name, DType dtype, const Shape& shape, Value x) {
    const Value acc = ops::state(g, name, dtype, shape);
    return g.add(ops::kAccumulate, {acc, x}, {}, "accumulate:" + name);
  };
  std::vector<Value> totals;
  for (size_t i = 0; i < trained.size(); ++i) {
    MT_CHECK(grads[i].valid(), "no gradient reaches ", trained[i]->name);
    enter(g, Phase::kBackward, trained[i]->layer);
    totals.push_back(
        accumulate(gradient_name(trained[i]->name), DType::kF32, trained[i]->shape, grads[i]));
  }
  enter(g, Phase::kBackward);
  for (size_t k = 0; k < loss_sums.size(); ++k) {
    sums.push_back({cat("loss_sum.", k), accumulate(cat("sum.", k), DType::kF32, {}, loss_sums[k])});
  }
  if (balance.valid()) {
    sums.push_back({"balance", accumulate("sum.balance", DType::kF32, {}, balance)});
  }
  for (const RoutedLayer& r : b.routed) {
    loads.push_back({cat("load.", r.layer), accumulate(cat("load.", r.layer), DType::kI64,
                                                       {b.m.n_routed_experts}, r.load)});
  }

  // The update proper.
  enter(g, Phase::kUpdate);
  const Value hyper = ops::input(g, "hyper", DType::kF32, {4});
  const Value bias_speed = ops::input(g, "bias_speed", DType::kF32, {});
  std::vector<Value> settled, squares;
  for (size_t i = 0; i < trained.size(); ++i) {
    enter(g, Phase::kUpdate, trained[i]->layer);
    settled.push_back(ops::settle(g, totals[i], "settle:" + trained[i]->name));
    squares.push_back(
        g.add(ops::kSumSquares, {settled[i]}, {}, "sum_squares:" + trained[i]->name));
    if (b.options.dump) g.mark_output("grad." + trained[i]->name, settled[i]);
  }
  enter(g, Phase::kUpdate);
  const Value norm2 = ops::add_n(g, squares, "grad_norm2");
  const int clip = g.append(ops::kClipFactor, {norm2}, {{"clip", u.clip}}, "clip");
  const Value factor{clip, 1};
  g.mark_output("grad_norm", {clip, 0});
  g.mark_output("clip_factor", factor);
  for (size_t i = 0; i < trained.size() && b.options.update_weights; ++i) {
    const Parameter& p = *trained[i];
    enter(g, Phase::kUpdate, p.layer);
    const bool separate = b.options.separate_master;
    const Value weight =
        separate ? ops::state(g, master_name(p.name), DType::kF32, p.shape) : b.param(p.name);
    const Value m1 = ops::state(g, first_moment_name(p.name), DType::kF32, p.shape);
    const Value m2 = ops::state(g, second_moment_name(p.name), DType::kF32, p.shape);
    const Value updated = g.add(ops::kAdamw, {weight, m1, m2, settled[i], factor, hyper},
                                {{"beta1", u.beta1},
                                 {"beta2", u.beta2},
                                 {"eps", u.eps},
                                 {"decay", p.decayed ? u.decay : 0.0}},
                                "adamw:" + p.name);
    if (separate) g.add(ops::kAssign, {b.param(p.name), updated}, {}, "assign:" + p.name);
  }
  enter(g, Phase::kUpdate);
  for (size_t i = 0; i < b.routed.size(); ++i) {
    const std::string bias =
        cat("model.layers.", b.routed[i].layer, ".mlp.gate.e_score_correction_bias");
    const Value load = ops::settle(g, loads[i].value, "settle:" + loads[i].name);
    g.mark_output(loads[i].name, load);
    g.add(ops::kBiasUpdate, {b.param(bias), load, bias_speed, factor}, {}, "bias:" + bias);
  }
  for (const Accumulated& s : sums) {
    g.mark_output(s.name, ops::settle(g, s.value, "settle:" + s.name));
  }
  for (size_t i = 0; i < totals.size(); ++i) g.add(ops::kClear, {totals[i]}, {}, "clear");
  for (const Accumulated& s : sums) g.add(ops::kClear, {s.value}, {}, "clear");
  for (const Accumulated& s : loads) g.add(ops::kClear, {s.value}, {}, "clear");
}

}  // namespace moetrain
