// Everything after the backward pass of a step: accumulation, norm, clip, AdamW, bias, metrics.
#include <map>

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

/// Phase, layer and chunk of the nodes that follow.
void enter(Graph& g, Phase phase, int layer, int chunk) {
  g.tag.phase = phase;
  g.tag.layer = layer;
  g.tag.stage = chunk;
}

/// Adds scalars up on their stages first; the stages' sums then meet on chunk 0.
Value sum_over_stages(Graph& g, const Stages& stages, const std::vector<Value>& terms,
                      const std::string& name) {
  std::map<int, std::vector<Value>> by_stage;
  for (Value v : terms) by_stage[stages.stage_of(g.node(v).tag.stage)].push_back(v);
  std::vector<Value> sums;
  for (const auto& [stage, values] : by_stage) {
    g.tag.stage = g.node(values.back()).tag.stage;
    sums.push_back(ops::add_n(g, values, by_stage.size() == 1 ? name : cat(name, ".", stage)));
  }
  g.tag.stage = 0;
  return sums.size() == 1 ? sums[0] : ops::add_n(g, sums, name);
}

}  // namespace

void build_update(Builder& b, const std::vector<Value>& loss_sums,
                  const std::vector<Value>& balances, Value loss) {
  Graph& g = b.g;
  const UpdateOptions& u = b.options.update;
  std::vector<const Parameter*> trained;
  std::vector<Value> wrt;
  std::map<std::string, int> home;
  for (const Parameter& p : b.table) {
    if (!p.trained) continue;
    trained.push_back(&p);
    home[p.name] = g.tag.stage = b.home_chunk(p);
    wrt.push_back(b.param(p.name));
  }
  for (const ParameterCopy& c : b.copies) wrt.push_back(c.value);
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
    enter(g, Phase::kBackward, trained[i]->layer, home[trained[i]->name]);
    totals.push_back(
        accumulate(gradient_name(trained[i]->name), DType::kF32, trained[i]->shape, grads[i]));
  }
  std::map<std::string, std::vector<Value>> away;  // gradient sums of a parameter's copies
  std::vector<Value> copy_totals;
  for (size_t i = 0; i < b.copies.size(); ++i) {
    const ParameterCopy& c = b.copies[i];
    const Value gradient = grads[trained.size() + i];
    MT_CHECK(gradient.valid(), "no gradient reaches ", c.name);
    enter(g, Phase::kBackward, -1, c.chunk);
    copy_totals.push_back(
        accumulate(gradient_name(c.name), DType::kF32, g.type(gradient).shape, gradient));
    enter(g, Phase::kUpdate, -1, c.chunk);
    // Named like the home's, so that it is laid out by the same rows.
    away[c.parameter].push_back(
        ops::settle(g, copy_totals.back(), "settle:" + c.parameter));
  }
  const int last = b.options.stages.chunks() - 1;
  enter(g, Phase::kBackward, -1, last);
  for (size_t k = 0; k < loss_sums.size(); ++k) {
    sums.push_back({cat("loss_sum.", k), accumulate(cat("sum.", k), DType::kF32, {}, loss_sums[k])});
  }
  std::vector<Value> balance_sums;
  for (Value balance : balances) {
    enter(g, Phase::kBackward, -1, g.node(balance).tag.stage);
    const std::string name =
        balances.size() == 1 ? "sum.balance" : cat("sum.balance.", b.stage());
    balance_sums.push_back(accumulate(name, DType::kF32, {}, balance));
  }
  for (const RoutedLayer& r : b.routed) {
    enter(g, Phase::kBackward, -1, b.options.chunk_of(r.layer));
    loads.push_back({cat("load.", r.layer), accumulate(cat("load.", r.layer), DType::kI64,
                                                       {b.m.n_routed_experts}, r.load)});
  }

  // The update proper.
  enter(g, Phase::kUpdate, -1, 0);
  const Value hyper = ops::input(g, "hyper", DType::kF32, {4});
  const Value bias_speed = ops::input(g, "bias_speed", DType::kF32, {});
  std::vector<Value> settled, squares;
  for (size_t i = 0; i < trained.size(); ++i) {
    enter(g, Phase::kUpdate, trained[i]->layer, home[trained[i]->name]);
    Value gradient = ops::settle(g, totals[i], "settle:" + trained[i]->name);
    for (Value more : away[trained[i]->name]) {
      gradient = ops::add(g, gradient, more, "gather:" + trained[i]->name);
    }
    settled.push_back(gradient);
    squares.push_back(
        g.add(ops::kSumSquares, {settled[i]}, {}, "sum_squares:" + trained[i]->name));
    if (b.options.dump) g.mark_output("grad." + trained[i]->name, settled[i]);
  }
  enter(g, Phase::kUpdate, -1, 0);
  const Value norm2 = sum_over_stages(g, b.options.stages, squares, "grad_norm2");
  const int clip = g.append(ops::kClipFactor, {norm2}, {{"clip", u.clip}}, "clip");
  const Value factor{clip, 1};
  g.mark_output("grad_norm", {clip, 0});
  g.mark_output("clip_factor", factor);
  for (size_t i = 0; i < trained.size() && b.options.update_weights; ++i) {
    const Parameter& p = *trained[i];
    enter(g, Phase::kUpdate, p.layer, home[p.name]);
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
    // Rounded where it was updated, so that only the rounded weight travels to its replicas.
    const DType kept = g.type(b.param(p.name)).dtype;
    const Value narrow = separate ? ops::cast(g, updated, kept, "narrow:" + p.name) : updated;
    if (separate) g.add(ops::kAssign, {b.param(p.name), narrow}, {}, "assign:" + p.name);
    for (const ParameterCopy& c : b.copies) {
      if (c.parameter != p.name) continue;
      enter(g, Phase::kUpdate, -1, c.chunk);
      g.add(ops::kAssign, {c.value, narrow}, {}, "assign:" + c.name);
    }
  }
  for (size_t i = 0; i < b.routed.size(); ++i) {
    enter(g, Phase::kUpdate, -1, b.options.chunk_of(b.routed[i].layer));
    const std::string bias =
        cat("model.layers.", b.routed[i].layer, ".mlp.gate.e_score_correction_bias");
    const Value load = ops::settle(g, loads[i].value, "settle:" + loads[i].name);
    g.mark_output(loads[i].name, load);
    g.add(ops::kBiasUpdate, {b.param(bias), load, bias_speed, factor}, {}, "bias:" + bias);
  }
  for (const Accumulated& s : sums) {
    enter(g, Phase::kUpdate, -1, last);
    g.mark_output(s.name, ops::settle(g, s.value, "settle:" + s.name));
  }
  if (!balance_sums.empty()) {
    std::vector<Value> done;
    for (Value sum : balance_sums) {
      enter(g, Phase::kUpdate, -1, g.node(sum).tag.stage);
      const std::string name = balance_sums.size() == 1 ? "balance" : cat("balance.", b.stage());
      done.push_back(ops::settle(g, sum, "settle:" + name));
    }
    g.mark_output("balance", sum_over_stages(g, b.options.stages, done, "balance_total"));
  }
  auto clear = [&](Value sum) {
    enter(g, Phase::kUpdate, -1, g.node(sum).tag.stage);
    g.add(ops::kClear, {sum}, {}, "clear");
  };
  for (Value sum : totals) clear(sum);
  for (Value sum : copy_totals) clear(sum);
  for (const Accumulated& s : sums) clear(s.value);
  for (Value sum : balance_sums) clear(sum);
  for (const Accumulated& s : loads) clear(s.value);
}

}  // namespace moetrain
