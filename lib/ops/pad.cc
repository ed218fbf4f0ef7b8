// Zeros behind the entries of the last dim, and their removal: each is the other's gradient.
#include "ops/pad.h"

#include <algorithm>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

std::vector<Type> widened(const char* op, const Attrs& attrs, Types inputs, int64_t sign) {
  check_count(op, inputs.size(), 1);
  const int64_t by = attrs.integer("by");
  Type type = inputs[0];
  MT_CHECK(!type.shape.empty() && by > 0, op, " by ", by, " of ", to_string(type));
  type.shape.back() += sign * by;
  MT_CHECK(type.shape.back() > 0, op, " by ", by, " leaves nothing of ", to_string(inputs[0]));
  return {type};
}

std::vector<Type> infer_pad(const Attrs& attrs, Types in) { return widened("pad", attrs, in, 1); }
std::vector<Type> infer_crop(const Attrs& attrs, Types in) { return widened("crop", attrs, in, -1); }

std::string rule(const Attrs&, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1);
  return lead + "Y->" + lead + "Z; whole YZ; linear 0";
}

std::vector<Value> vjp_pad(Graph& graph, int node, std::span<const Value> dy) {
  return {crop(graph, dy[0], graph.nodes[node].attrs.integer("by"), "dx")};
}
std::vector<Value> vjp_crop(Graph& graph, int node, std::span<const Value> dy) {
  return {pad(graph, dy[0], graph.nodes[node].attrs.integer("by"), "dx")};
}

void reference(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t from = inputs[0].cols(), to = outputs[0].cols();
  for (int64_t r = 0; r < outputs[0].rows(); ++r) {
    for (int64_t c = 0; c < to; ++c) {
      set_element(outputs[0], r * to + c, c < from ? get_element(inputs[0], r * from + c) : 0.0);
    }
  }
}

}  // namespace

constinit const OpDef kPad = {"pad", infer_pad, rule, vjp_pad, moving_cost, reference};
constinit const OpDef kCrop = {"crop", infer_crop, rule, vjp_crop, moving_cost, reference};

Value pad(Graph& g, Value x, int64_t by, const std::string& name) {
  return g.add(kPad, {x}, {{"by", by}}, name);
}
Value crop(Graph& g, Value x, int64_t by, const std::string& name) {
  return g.add(kCrop, {x}, {{"by", by}}, name);
}

}  // namespace moetrain::ops
