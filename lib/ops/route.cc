// The sigmoid router: group-limited biased top-k, weights from raw scores, loads and balance statistics.
#include "ops/route.h"

#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

RouteOptions options_of(const Attrs& attrs, int64_t experts) {
  RouteOptions o;
  o.experts = experts;
  o.top_k = attrs.integer("top_k");
  o.groups = attrs.integer("groups");
  o.top_groups = attrs.integer("top_groups");
  o.normalise = attrs.integer("normalise") != 0;
  o.scaling = attrs.real("scaling");
  o.valid_positions = attrs.integer("valid_positions");
  return o;
}

void check_options(const RouteOptions& o) {
  MT_CHECK(o.groups >= 1 && o.experts % o.groups == 0 && o.top_groups >= 1 &&
               o.top_groups <= o.groups,
           "route: ", o.experts, " experts in ", o.groups, " groups, ", o.top_groups, " kept");
  const int64_t eligible = o.groups > 1 ? o.experts / o.groups * o.top_groups : o.experts;
  MT_CHECK(o.top_k >= 1 && o.top_k <= eligible, "route: top-", o.top_k, " of ", eligible,
           " eligible experts");
}

bool routed(const RouteOptions& o, double position) {
  return o.valid_positions <= 0 || position < static_cast<double>(o.valid_positions);
}

std::vector<double> sigmoid(const double* logits, int64_t n) {
  std::vector<double> s(n);
  for (int64_t e = 0; e < n; ++e) s[e] = 1.0 / (1.0 + std::exp(-logits[e]));
  return s;
}

/// Flags of the `count` largest of z[0, n); the lower index wins a tie. Only entries with an
/// `eligible` flag compete (all, if the vector is empty). Always picks `count` different entries.
std::vector<char> largest(const std::vector<double>& z, int64_t count,
                          const std::vector<char>& eligible = {}) {
  const int64_t n = static_cast<int64_t>(z.size());
  std::vector<char> chosen(n, 0);
  for (int64_t k = 0; k < count; ++k) {
    int64_t best = -1;
    for (int64_t e = 0; e < n; ++e) {
      if (chosen[e] || (!eligible.empty() && !eligible[e])) continue;
      if (best < 0 || z[e] > z[best]) best = e;
    }
    chosen[best] = 1;
  }
  return chosen;
}

/// Sum of the two largest of z[0, n).
double best_two(const double* z, int64_t n) {
  double first = -INFINITY, second = -INFINITY;
  for (int64_t e = 0; e < n; ++e) {
    if (z[e] > first) {
      second = first;
      first = z[e];
    } else if (z[e] > second) {
      second = z[e];
    }
  }
  return n > 1 ? first + second : first;
}

/// The experts a token goes to, from its biased scores (golden mathematics, group-limited top-k).
std::vector<char> choose(const RouteOptions& o, const std::vector<double>& biased) {
  if (o.groups == 1) return largest(biased, o.top_k);
  const int64_t size = o.experts / o.groups;
  std::vector<double> group_scores(o.groups);
  for (int64_t g = 0; g < o.groups; ++g) group_scores[g] = best_two(&biased[g * size], size);
  const std::vector<char> kept = largest(group_scores, o.top_groups);
  std::vector<char> eligible(o.experts);
  for (int64_t e = 0; e < o.experts; ++e) eligible[e] = kept[e / size];
  return largest(biased, o.top_k, eligible);
}

// ---- route ----

std::vector<Type> infer_route(const Attrs& attrs, Types inputs) {
  check_count("route", inputs.size(), 3);
  const Type &logits = inputs[0], &bias = inputs[1], &pos = inputs[2];
  MT_CHECK(logits.shape.size() == 3 && is_float(logits.dtype) && is_float(bias.dtype) &&
               bias.shape == Shape{logits.shape[2]} &&
               pos == (Type{DType::kI32, {logits.shape[0], logits.shape[1]}}),
           "route: logits ", to_string(logits), ", bias ", to_string(bias), ", positions ",
           to_string(pos));
  const RouteOptions o = options_of(attrs, logits.shape[2]);
  check_options(o);
  const int64_t b = logits.shape[0], s = logits.shape[1];
  return {{DType::kI32, {b, s, o.top_k}},
          {DType::kF32, {b, s, o.top_k}},
          {DType::kI64, {o.experts}},
          {DType::kF32, {b, o.experts}},
          {DType::kF32, {b, o.experts}}};
}

// load lacks b and s, plain and mean_score lack s: sums over tokens, partial by the law.
std::string rule_route(const Attrs&, Types) { return "bse,e,bs->bsj,bsj,e,be,be; whole ej"; }

std::vector<Value> vjp_route(Graph& graph, int node, std::span<const Value> dy) {
  const Node n = graph.nodes[node];
  MT_CHECK(!dy[0].valid() && !dy[2].valid() && !dy[3].valid(),
           "route: only weight and mean_score have gradients");
  const Value dweight = dy[1].valid() ? dy[1] : zeros(graph, n.outputs[1]);
  std::vector<Value> operands{dweight, n.inputs[0], {node, 0}, n.inputs[2]};
  if (dy[4].valid()) operands.push_back(dy[4]);
  return {graph.add(kRouteGrad, std::move(operands), n.attrs, "grad"), {}, {}};
}

Cost cost_route(const Attrs& attrs, Types inputs, Types outputs) {
  const double scores = static_cast<double>(elements(inputs[0]));
  return {0, scores * static_cast<double>(12 + 2 * attrs.integer("top_k")),
          bytes_of(inputs) + bytes_of(outputs)};
}

void reference_route(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const RouteOptions o = options_of(attrs, inputs[0].shape[2]);
  const int64_t batch = inputs[0].shape[0], length = inputs[0].shape[1];
  const int64_t experts = o.experts, top_k = o.top_k;
  const std::vector<double> logits = load(inputs[0]), bias = load(inputs[1]);
  const std::vector<int64_t> pos = load_integers(inputs[2]);
  std::vector<int64_t> load_count(experts, 0);
  std::vector<double> plain(batch * experts, 0.0), mean(batch * experts, 0.0);
  for (int64_t t = 0; t < batch * length; ++t) {
    if (!routed(o, static_cast<double>(pos[t]))) {
      for (int64_t k = 0; k < top_k; ++k) {
        set_element(outputs[0], t * top_k + k, -1);
        set_element(outputs[1], t * top_k + k, 0);
      }
      continue;
    }
    const std::vector<double> s = sigmoid(&logits[t * experts], experts);
    std::vector<double> biased(experts);
    for (int64_t e = 0; e < experts; ++e) biased[e] = s[e] + bias[e];
    const std::vector<char> chosen = choose(o, biased), raw = largest(s, top_k);
    double kept = 0, all = 0;
    for (int64_t e = 0; e < experts; ++e) {
      all += s[e];
      if (chosen[e]) kept += s[e];
    }
    const double factor = o.normalise ? o.scaling / (kept + 1e-20) : o.scaling;
    int64_t slot = t * top_k;
    for (int64_t e = 0; e < experts; ++e) {
      plain[t / length * experts + e] += raw[e];
      mean[t / length * experts + e] += s[e] / all;
      if (!chosen[e]) continue;
      ++load_count[e];
      set_element(outputs[0], slot, static_cast<double>(e));
      set_element(outputs[1], slot++, factor * s[e]);
    }
  }
  for (int64_t e = 0; e < experts; ++e) outputs[2].as<int64_t>()[e] = load_count[e];
  store(plain, outputs[3]);
  store(mean, outputs[4]);
}

// ---- route_grad ----

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  MT_CHECK(inputs.size() == 4 || inputs.size() == 5, "route_grad: ", inputs.size(), " operands");
  const Type &dweight = inputs[0], &logits = inputs[1], &idx = inputs[2], &pos = inputs[3];
  MT_CHECK(logits.shape.size() == 3, "route_grad: logits ", to_string(logits));
  const Shape slots{logits.shape[0], logits.shape[1], attrs.integer("top_k")};
  MT_CHECK(dweight.shape == slots && is_float(dweight.dtype) &&
               idx == (Type{DType::kI32, slots}) &&
               pos == (Type{DType::kI32, {slots[0], slots[1]}}),
           "route_grad: dweight ", to_string(dweight), ", logits ", to_string(logits), ", idx ",
           to_string(idx), ", positions ", to_string(pos));
  if (inputs.size() == 5) {
    MT_CHECK(inputs[4].shape == Shape({logits.shape[0], logits.shape[2]}),
             "route_grad: dmean_score ", to_string(inputs[4]), ", logits ", to_string(logits));
  }
  return {{DType::kF32, logits.shape}};
}

// Two gradients add up: linear in both together, so one of them alone cannot be pending.
std::string rule_grad(const Attrs&, Types inputs) {
  return inputs.size() == 5 ? "bsj,bse,bsj,bs,be->bse; whole ej; linear 04"
                            : "bsj,bse,bsj,bs->bse; whole ej; linear 0";
}

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 14);
}

void reference_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const RouteOptions o = options_of(attrs, inputs[1].shape[2]);
  const int64_t batch = inputs[1].shape[0], length = inputs[1].shape[1];
  const int64_t experts = o.experts, top_k = o.top_k;
  const std::vector<double> dweight = load(inputs[0]), logits = load(inputs[1]);
  const std::vector<int64_t> idx = load_integers(inputs[2]), pos = load_integers(inputs[3]);
  const std::vector<double> dmean = inputs.size() == 5 ? load(inputs[4]) : std::vector<double>{};
  std::vector<double> grad(batch * length * experts, 0.0);
  for (int64_t t = 0; t < batch * length; ++t) {
    if (!routed(o, static_cast<double>(pos[t]))) continue;
    const std::vector<double> s = sigmoid(&logits[t * experts], experts);
    std::vector<double> ds(experts, 0.0);
    // weight_k = scaling s_k / (sum + tiny): quotient rule.
    double kept = 1e-20, dot = 0;
    for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
      if (idx[k] < 0) continue;
      kept += s[idx[k]];
      dot += dweight[k] * s[idx[k]];
    }
    for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
      if (idx[k] < 0) continue;
      ds[idx[k]] += o.scaling * (o.normalise ? dweight[k] / kept - dot / (kept * kept) : dweight[k]);
    }
    if (!dmean.empty()) {
      const double* g = &dmean[t / length * experts];
      double all = 0, mix = 0;
      for (int64_t e = 0; e < experts; ++e) {
        all += s[e];
        mix += g[e] * s[e];
      }
      for (int64_t e = 0; e < experts; ++e) ds[e] += g[e] / all - mix / (all * all);
    }
    for (int64_t e = 0; e < experts; ++e) grad[t * experts + e] = ds[e] * s[e] * (1.0 - s[e]);
  }
  store(grad, outputs[0]);
}

}  // namespace

constinit const OpDef kRoute = {"route",   infer_route, rule_route,
                                vjp_route, cost_route,  reference_route};
constinit const OpDef kRouteGrad = {"route_grad", infer_grad, rule_grad,
                                    nullptr,      cost_grad,  reference_grad};

Routing route(Graph& g, Value logits, Value bias, Value pos, const RouteOptions& options,
              const std::string& name) {
  MT_CHECK(options.experts == g.type(bias).shape[0], "route '", name, "': ", options.experts,
           " experts, bias ", to_string(g.type(bias)));
  const int node = g.append(kRoute, {logits, bias, pos},
                            {{"top_k", options.top_k},
                             {"groups", options.groups},
                             {"top_groups", options.top_groups},
                             {"normalise", int64_t{options.normalise}},
                             {"scaling", options.scaling},
                             {"valid_positions", options.valid_positions}},
                            name);
  return {{node, 0}, {node, 1}, {node, 2}, {node, 3}, {node, 4}};
}

}  // namespace moetrain::ops
