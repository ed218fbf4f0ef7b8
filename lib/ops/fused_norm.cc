// RMSNorm together with the sums around it, forward and backward.
#include "ops/fused_norm.h"

#include <cmath>

#include "ops/common.h"
#include "ops/norm.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

DType wider(DType a, DType b) { return size_of(b) > size_of(a) ? b : a; }

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

// ---- x = sum of terms, y = rms_norm(x) ----

std::vector<Type> infer_norm(const Attrs& attrs, Types inputs) {
  MT_CHECK(inputs.size() >= 3, "add_rms_norm of ", inputs.size(), " operands");
  const Type& gain = inputs.back();
  Type x = inputs[0];
  for (const Type& t : inputs.first(inputs.size() - 1)) {
    check_float("add_rms_norm", t);
    MT_CHECK(t.shape == x.shape && !t.ragged && !t.shape.empty(), "add_rms_norm: ", to_string(x),
             " and ", to_string(t));
    x.dtype = wider(x.dtype, t.dtype);
  }
  MT_CHECK(gain.shape == Shape{x.shape.back()} && is_float(gain.dtype), "add_rms_norm: x ",
           to_string(x), ", gain ", to_string(gain));
  attrs.real("eps");
  std::vector<Type> types{x, {dtype_attr(attrs, x.dtype), x.shape}, {DType::kF32, without_last(x.shape)}};
  if (attrs.has("copy")) types.push_back({dtype_named(attrs.text("copy")), x.shape});
  return types;
}

std::string rule_norm(const Attrs& attrs, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1);
  std::string text;
  for (size_t i = 0; i + 1 < inputs.size(); ++i) text += lead + "d,";
  text += "d->" + lead + "d," + lead + "d," + lead;
  if (attrs.has("copy")) text += "," + lead + "d";
  return text + "; whole d";
}

Cost cost_norm(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 4 + static_cast<double>(inputs.size()));
}

void reference_norm(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double eps = attrs.real("eps");
  const std::vector<double> gain = load(inputs.back());
  const int64_t rows = inputs[0].rows(), width = inputs[0].cols();
  std::vector<double> x(width);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) {
      x[c] = 0;
      for (const Tensor& t : inputs.first(inputs.size() - 1)) x[c] += get_element(t, r * width + c);
      squares += x[c] * x[c];
    }
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (int64_t c = 0; c < width; ++c) {
      const double y = x[c] * rstd * gain[c];
      set_element(outputs[0], r * width + c, x[c]);
      set_element(outputs[1], r * width + c, y);
      if (outputs.size() > 3) set_element(outputs[3], r * width + c, y);
    }
    set_element(outputs[2], r, rstd);
  }
}

// ---- other + dx ----

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  MT_CHECK(inputs.size() >= 5, "rms_norm_grad_add of ", inputs.size(), " operands");
  const Type& other = inputs[4];
  std::vector<Type> types = kRmsNormGrad.infer(attrs, inputs.first(4));
  MT_CHECK(other.shape == types[0].shape && is_float(other.dtype), "rms_norm_grad_add: dx ",
           to_string(types[0]), ", other ", to_string(other));
  for (const Type& more : inputs.subspan(5)) {
    MT_CHECK(more.shape == types[0].shape && is_float(more.dtype), "rms_norm_grad_add: dx ",
             to_string(types[0]), ", one more dy ", to_string(more));
  }
  types[0].dtype = wider(types[0].dtype, other.dtype);
  if (attrs.has("copy")) types.push_back({dtype_named(attrs.text("copy")), types[0].shape});
  return types;
}

// Linear in all dy and other together, but for the rounding of a copy.
std::string rule_grad(const Attrs& attrs, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size() - 1), x = lead + "d";
  const bool copy = attrs.has("copy");
  std::string text = x + "," + x + ",d," + lead + "," + x, linear = "; linear 04";
  for (size_t i = 5; i < inputs.size(); ++i) {
    text += "," + x;
    linear += std::to_string(i);
  }
  return text + "->" + x + ",d" + (copy ? "," + x : "") + "; whole d" + (copy ? "" : linear);
}

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 11);
}

void reference_grad(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  std::vector<double> dy = load(inputs[0]);
  for (const Tensor& more : inputs.subspan(5)) {
    for (size_t i = 0; i < dy.size(); ++i) dy[i] += get_element(more, static_cast<int64_t>(i));
  }
  const std::vector<double> x = load(inputs[1]), g = load(inputs[2]);
  const int64_t rows = inputs[1].rows(), width = inputs[1].cols();
  std::vector<double> dg(width, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = get_element(inputs[3], r);
    double dot = 0;
    for (int64_t i = r * width, c = 0; c < width; ++c, ++i) {
      dg[c] += dy[i] * x[i] * rstd;
      dot += dy[i] * g[c] * x[i] * rstd;
    }
    dot /= static_cast<double>(width);
    for (int64_t i = r * width, c = 0; c < width; ++c, ++i) {
      const double sum = get_element(inputs[4], i) + rstd * (dy[i] * g[c] - x[i] * rstd * dot);
      set_element(outputs[0], i, sum);
      if (outputs.size() > 2) set_element(outputs[2], i, sum);
    }
  }
  store(dg, outputs[1]);
}

}  // namespace

constinit const OpDef kAddRmsNorm = {"add_rms_norm", infer_norm, rule_norm,
                                     nullptr,        cost_norm,  reference_norm};
constinit const OpDef kRmsNormGradAdd = {"rms_norm_grad_add", infer_grad, rule_grad,
                                         nullptr,             cost_grad,  reference_grad};

}  // namespace moetrain::ops
