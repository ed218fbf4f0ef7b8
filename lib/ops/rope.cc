// Rotary position embedding (its own transpose with the angle negated).
#include <cmath>

#include "ops/attention.h"
#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

std::vector<Type> infer_rope(const Attrs& attrs, Types inputs) {
  check_count("rope", inputs.size(), 2);
  const Type &x = inputs[0], &pos = inputs[1];
  const int64_t width = attrs.integer("rope_dim");
  MT_CHECK((x.shape.size() == 3 || x.shape.size() == 4) && is_float(x.dtype) &&
               pos == (Type{DType::kI32, {x.shape[0], x.shape[1]}}),
           "rope: x ", to_string(x), ", positions ", to_string(pos));
  MT_CHECK(width > 0 && width % 2 == 0 && width <= x.shape.back() &&
               static_cast<int64_t>(attrs.reals("frequencies").size()) == width / 2,
           "rope: rope_dim ", width, " with ", attrs.reals("frequencies").size(),
           " frequencies for ", to_string(x));
  attrs.real("amplitude");
  attrs.integer("interleave");
  return {x};
}

std::string rule_rope(const Attrs&, Types inputs) {
  const std::string dims = inputs[0].shape.size() == 4 ? "bshr" : "bsr";
  return dims + ",bs->" + dims + "; whole r; linear 0";
}

std::vector<Value> vjp_rope(Graph& graph, int node, std::span<const Value> dy) {
  Attrs attrs = graph.nodes[node].attrs;
  attrs.set("inverse", int64_t{attrs.integer_or("inverse", 0) ? 0 : 1});
  return {graph.add(kRope, {dy[0], graph.nodes[node].inputs[1]}, std::move(attrs), "grad"), {}};
}

/// In place only what turns is touched.
Cost cost_rope(const Attrs& attrs, Types inputs, Types outputs) {
  Cost cost = streaming_cost(inputs, outputs, 3);
  if (attrs.integer_or("in_place", 0)) {
    cost.bytes *= static_cast<double>(attrs.integer("rope_dim")) /
                  static_cast<double>(inputs[0].shape.back());
  }
  return cost;
}

int alias_rope(const Attrs& attrs, int) { return attrs.integer_or("in_place", 0) ? 0 : -1; }

void reference_rope(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t rope_dim = attrs.integer("rope_dim"), half = rope_dim / 2;
  const std::vector<double>& frequency = attrs.reals("frequencies");
  const double amplitude = attrs.real("amplitude");
  const bool interleave = attrs.integer("interleave") != 0;
  const double direction = attrs.integer_or("inverse", 0) ? -1.0 : 1.0;
  const int64_t width = inputs[0].cols(), plain = width - rope_dim;
  const int64_t tokens = inputs[1].numel();
  const int64_t rows_per_token = tokens ? inputs[0].rows() / tokens : 0;
  for (int64_t row = 0, rows = inputs[0].rows(); row < rows; ++row) {
    const double position = get_element(inputs[1], row / rows_per_token);
    const int64_t base = row * width;
    for (int64_t c = 0; c < plain; ++c) {
      set_element(outputs[0], base + c, get_element(inputs[0], base + c));
    }
    for (int64_t m = 0; m < half; ++m) {
      const int64_t i = base + plain + (interleave ? 2 * m : m);
      const int64_t j = i + (interleave ? 1 : half);
      const double angle = direction * position * frequency[m];
      const double cosine = amplitude * std::cos(angle), sine = amplitude * std::sin(angle);
      const double a = get_element(inputs[0], i), b = get_element(inputs[0], j);
      set_element(outputs[0], i, a * cosine - b * sine);
      set_element(outputs[0], j, a * sine + b * cosine);
    }
  }
}

}  // namespace

constinit const OpDef kRope = {"rope",    infer_rope,     rule_rope, vjp_rope,
                               cost_rope, reference_rope, alias_rope};

Value rope(Graph& g, Value x, Value pos, const RopeTable& table, const std::string& name) {
  return g.add(kRope, {x, pos},
               {{"rope_dim", static_cast<int64_t>(2 * table.frequencies.size())},
                {"frequencies", table.frequencies},
                {"amplitude", table.amplitude},
                {"interleave", int64_t{table.interleave}},
                {"inverse", int64_t{0}}},
               name);
}

}  // namespace moetrain::ops
