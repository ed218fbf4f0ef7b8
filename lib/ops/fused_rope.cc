// The latent's norm together with the shared key's rotation.
#include "ops/fused_rope.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/common.h"
#include "ops/norm.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

/// Rotates `x` (rope_dim entries) at `position`; as kRope.
void turn(const Attrs& attrs, double position, std::vector<double>& x) {
  const std::vector<double>& frequency = attrs.reals("frequencies");
  const bool interleave = attrs.integer("interleave") != 0;
  const double direction = attrs.integer_or("inverse", 0) ? -1.0 : 1.0;
  const size_t half = frequency.size();
  for (size_t m = 0; m < half; ++m) {
    const double angle = direction * position * frequency[m];
    const double cosine = attrs.real("amplitude") * std::cos(angle);
    const double sine = attrs.real("amplitude") * std::sin(angle);
    const size_t i = interleave ? 2 * m : m, j = interleave ? 2 * m + 1 : m + half;
    const double a = x[i], b = x[j];
    x[i] = a * cosine - b * sine;
    x[j] = a * sine + b * cosine;
  }
}

/// The types as those of rms_norm and rope.
std::vector<Type> infer_norm_rope(const Attrs& attrs, Types inputs) {
  check_count("norm_rope", inputs.size(), 3);
  const Type &joint = inputs[0], &gain = inputs[1];
  const int64_t width = attrs.integer("rope_dim");
  MT_CHECK(joint.shape.size() == 3 && gain.shape.size() == 1 &&
               gain.shape[0] + width == joint.shape[2],
           "norm_rope: ", to_string(joint), ", gain ", to_string(gain), ", rope_dim ", width);
  const Shape tokens{joint.shape[0], joint.shape[1]};
  const Type latent{joint.dtype, {tokens[0], tokens[1], gain.shape[0]}};
  const Type rotary{joint.dtype, {tokens[0], tokens[1], width}};
  std::vector<Type> types = kRmsNorm.infer(attrs, std::vector<Type>{latent, gain});
  types.push_back(kRope.infer(attrs, std::vector<Type>{rotary, inputs[2]})[0]);
  if (attrs.has("rope_dtype")) types.back().dtype = dtype_named(attrs.text("rope_dtype"));
  return types;
}

std::string rule_norm_rope(const Attrs&, Types) { return "bsx,d,bs->bsd,bs,bsr; whole xdr"; }

Cost cost_norm_rope(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 4);
}

void reference_norm_rope(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double eps = attrs.real("eps");
  const std::vector<double> joint = load(inputs[0]), gain = load(inputs[1]);
  const int64_t rows = inputs[0].rows(), width = inputs[0].cols(), d = inputs[1].numel();
  std::vector<double> rotary(width - d);
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = &joint[r * width];
    double squares = 0;
    for (int64_t c = 0; c < d; ++c) squares += x[c] * x[c];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (int64_t c = 0; c < d; ++c) set_element(outputs[0], r * d + c, x[c] * rstd * gain[c]);
    set_element(outputs[1], r, rstd);
    rotary.assign(x + d, x + width);
    turn(attrs, get_element(inputs[2], r), rotary);
    for (int64_t c = d; c < width; ++c) {
      set_element(outputs[2], r * (width - d) + c - d, rotary[c - d]);
    }
  }
}

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  check_count("norm_rope_grad", inputs.size(), 6);
  const Type &dy = inputs[0], &x = inputs[1], &dk = inputs[4];
  MT_CHECK(dy.shape.size() == 3 && x.shape.size() == 3 && dk.shape.size() == 3 &&
               x.shape[2] >= dy.shape[2],
           "norm_rope_grad: dy ", to_string(dy), ", x ", to_string(x), ", dk ", to_string(dk));
  Type latent = x;
  latent.shape[2] = dy.shape[2];
  std::vector<Type> types =
      kRmsNormGrad.infer({}, std::vector<Type>{dy, latent, inputs[2], inputs[3]});
  kRope.infer(attrs, std::vector<Type>{dk, inputs[5]});
  MT_CHECK(dk.shape[2] == attrs.integer("rope_dim"), "norm_rope_grad: dk ", to_string(dk));
  types[0].shape[2] += dk.shape[2];
  types[0].dtype = dtype_attr(attrs, x.dtype);
  if (attrs.has("copy")) types.push_back({dtype_named(attrs.text("copy")), types[0].shape});
  return types;
}

std::string rule_grad(const Attrs& attrs, Types) {
  return std::string("bsd,bsx,d,bs,bsr,bs->bsy,d") + (attrs.has("copy") ? ",bsy" : "") +
         "; whole dxry";
}

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 9);
}

void reference_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<double> dy = load(inputs[0]), x = load(inputs[1]), g = load(inputs[2]);
  const std::vector<double> dk = load(inputs[4]);
  const int64_t rows = inputs[0].rows(), d = inputs[0].cols(), pitch = inputs[1].cols();
  const int64_t turned = inputs[4].cols(), width = d + turned;
  std::vector<double> dg(d, 0.0), row(width), rotary(turned);
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = get_element(inputs[3], r);
    const double *given = &dy[r * d], *v = &x[r * pitch];
    double dot = 0;
    for (int64_t c = 0; c < d; ++c) dot += given[c] * g[c] * v[c] * rstd;
    dot /= static_cast<double>(d);
    for (int64_t c = 0; c < d; ++c) {
      dg[c] += given[c] * v[c] * rstd;
      row[c] = rstd * (given[c] * g[c] - v[c] * rstd * dot);
    }
    rotary.assign(&dk[r * turned], &dk[r * turned] + turned);
    turn(attrs, get_element(inputs[5], r), rotary);
    std::copy(rotary.begin(), rotary.end(), row.begin() + d);
    for (int64_t c = 0; c < width; ++c) {
      set_element(outputs[0], r * width + c, row[c]);
      if (outputs.size() > 2) set_element(outputs[2], r * width + c, row[c]);
    }
  }
  store(dg, outputs[1]);
}

}  // namespace

constinit const OpDef kNormRope = {"norm_rope", infer_norm_rope, rule_norm_rope,
                                   nullptr,     cost_norm_rope,  reference_norm_rope};
constinit const OpDef kNormRopeGrad = {"norm_rope_grad", infer_grad, rule_grad,
                                       nullptr,          cost_grad,  reference_grad};

}  // namespace moetrain::ops
