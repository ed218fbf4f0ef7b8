// The optimizer step as operators: accumulate, clear, assign, norm, clip factor, AdamW, routing bias.
#include "ops/update.h"

#include <algorithm>
#include <cmath>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

int alias_adamw(const Attrs&, int output) { return output < 3 ? output : 6; }
int alias_first(const Attrs&, int) { return 0; }

void copy(const Tensor& from, const Tensor& to) {
  for (int64_t i = 0, n = to.numel(); i < n; ++i) set_element(to, i, get_element(from, i));
}

// ---- accumulate, clear, assign ----

std::vector<Type> infer_accumulate(const Attrs&, Types inputs) {
  check_count("accumulate", inputs.size(), 2);
  const Type &acc = inputs[0], &x = inputs[1];
  MT_CHECK(acc.shape == x.shape && !acc.ragged && !x.ragged &&
               is_float(acc.dtype) == is_float(x.dtype) &&
               (is_float(acc.dtype) || acc.dtype == DType::kI64),
           "accumulate: acc ", to_string(acc), ", x ", to_string(x));
  return {acc};
}

std::string rule_accumulate(const Attrs&, Types) { return "*,*->*; linear 01"; }

Cost cost_one(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 1);
}

void reference_accumulate(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  if (!is_float(outputs[0].dtype)) {
    const std::vector<int64_t> acc = load_integers(inputs[0]), x = load_integers(inputs[1]);
    for (size_t i = 0; i < acc.size(); ++i) outputs[0].as<int64_t>()[i] = acc[i] + x[i];
    return;
  }
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    set_element(outputs[0], i, get_element(inputs[0], i) + get_element(inputs[1], i));
  }
}

std::vector<Type> infer_clear(const Attrs&, Types inputs) {
  check_count("clear", inputs.size(), 1);
  return {inputs[0]};
}

std::string rule_clear(const Attrs&, Types) { return "*->*; linear 0"; }

void reference_clear(const Attrs&, Tensors, std::span<Tensor> outputs) {
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) set_element(outputs[0], i, 0.0);
}

std::vector<Type> infer_assign(const Attrs&, Types inputs) {
  check_count("assign", inputs.size(), 2);
  MT_CHECK(inputs[0].shape == inputs[1].shape && !inputs[0].ragged && !inputs[1].ragged &&
               is_float(inputs[0].dtype) == is_float(inputs[1].dtype),
           "assign: state ", to_string(inputs[0]), ", value ", to_string(inputs[1]));
  return {inputs[0]};
}

// Rounding the parts of a sum is not rounding the sum, so a narrowing assignment takes no partial.
std::string rule_assign(const Attrs&, Types inputs) {
  const bool narrows = size_of(inputs[0].dtype) < size_of(inputs[1].dtype);
  return narrows ? "*,*->*" : "*,*->*; linear 01";
}

void reference_assign(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  copy(inputs[1], outputs[0]);
}

// ---- gradient norm and clip factor ----

std::vector<Type> infer_sum_squares(const Attrs&, Types inputs) {
  check_count("sum_squares", inputs.size(), 1);
  check_float("sum_squares", inputs[0]);
  return {{DType::kF32, {}}};
}

std::string rule_sum_squares(const Attrs&, Types inputs) {
  return plain_letters(inputs[0].shape.size()) + "->";
}

Cost cost_sum_squares(const Attrs&, Types inputs, Types outputs) {
  return {0, 2.0 * static_cast<double>(elements(inputs[0])), bytes_of(inputs) + bytes_of(outputs)};
}

void reference_sum_squares(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  double sum = 0;
  for (int64_t i = 0, n = inputs[0].numel(); i < n; ++i) {
    const double x = get_element(inputs[0], i);
    sum += x * x;
  }
  set_element(outputs[0], 0, sum);
}

std::vector<Type> infer_clip(const Attrs& attrs, Types inputs) {
  check_count("clip_factor", inputs.size(), 1);
  MT_CHECK(inputs[0].shape.empty() && is_float(inputs[0].dtype), "clip_factor: norm2 ",
           to_string(inputs[0]));
  MT_CHECK(attrs.real("clip") >= 0, "clip_factor: a negative clip norm");
  return {{DType::kF32, {}}, {DType::kF32, {}}};
}

std::string rule_clip(const Attrs&, Types) { return "->,"; }

void reference_clip(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double clip = attrs.real("clip");
  const double norm = std::sqrt(get_element(inputs[0], 0));
  double factor = 1;
  if (!std::isfinite(norm)) {
    factor = -1;
  } else if (clip > 0) {
    factor = std::min(1.0, clip / (norm + 1e-6));
  }
  set_element(outputs[0], 0, norm);
  set_element(outputs[1], 0, factor);
}

// ---- AdamW ----

std::vector<Type> infer_adamw(const Attrs& attrs, Types inputs) {
  const bool copy = attrs.integer_or("copy", 0) != 0;
  check_count("adamw (a seventh operand needs attribute copy=1)", inputs.size(), copy ? 7 : 6);
  for (int i = 0; i < 4; ++i) {
    MT_CHECK(inputs[i].shape == inputs[0].shape && is_float(inputs[i].dtype) && !inputs[i].ragged,
             "adamw: operand ", i, " is ", to_string(inputs[i]), ", the parameter ",
             to_string(inputs[0]));
  }
  MT_CHECK(inputs[4].shape.empty() && inputs[5].shape == Shape{4}, "adamw: factor ",
           to_string(inputs[4]), ", hyper ", to_string(inputs[5]));
  for (const char* name : {"beta1", "beta2", "eps", "decay"}) attrs.real(name);
  if (!copy) return {inputs[0], inputs[1], inputs[2]};
  MT_CHECK(inputs[6].shape == inputs[0].shape && is_float(inputs[6].dtype), "adamw: copy ",
           to_string(inputs[6]), " of ", to_string(inputs[0]));
  return {inputs[0], inputs[1], inputs[2], inputs[6]};
}

std::string rule_adamw(const Attrs&, Types inputs) {
  const std::string dims = plain_letters(inputs[0].shape.size());
  const std::string copy = inputs.size() == 7 ? "," + dims : "";
  return dims + "," + dims + "," + dims + "," + dims + ",,z" + copy + "->" + dims + "," + dims + "," +
         dims + copy + "; whole z";
}

Cost cost_adamw(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 16);
}

void reference_adamw(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const double factor = get_element(inputs[4], 0);
  if (!(factor >= 0)) {
    for (int i = 0; i < 3; ++i) copy(inputs[i], outputs[i]);
    if (inputs.size() == 7) copy(inputs[6], outputs[3]);
    return;
  }
  const double beta1 = attrs.real("beta1"), beta2 = attrs.real("beta2");
  const double eps = attrs.real("eps"), decay = attrs.real("decay");
  const double rate = get_element(inputs[5], 0);
  const double correct1 = get_element(inputs[5], 1), correct2 = get_element(inputs[5], 2);
  for (int64_t i = 0, n = outputs[0].numel(); i < n; ++i) {
    const double p = get_element(inputs[0], i), g = factor * get_element(inputs[3], i);
    const double m = beta1 * get_element(inputs[1], i) + (1 - beta1) * g;
    const double v = beta2 * get_element(inputs[2], i) + (1 - beta2) * g * g;
    const double step = (m / correct1) / (std::sqrt(v / correct2) + eps);
    const double updated = p - rate * decay * p - rate * step;
    set_element(outputs[0], i, updated);
    if (inputs.size() == 7) set_element(outputs[3], i, updated);
    set_element(outputs[1], i, m);
    set_element(outputs[2], i, v);
  }
}

// ---- routing bias ----

std::vector<Type> infer_bias(const Attrs&, Types inputs) {
  check_count("bias_update", inputs.size(), 4);
  MT_CHECK(inputs[0].shape.size() == 1 && is_float(inputs[0].dtype) &&
               inputs[1] == (Type{DType::kI64, inputs[0].shape}) && inputs[2].shape.empty() &&
               inputs[3].shape.empty(),
           "bias_update: bias ", to_string(inputs[0]), ", load ", to_string(inputs[1]), ", speed ",
           to_string(inputs[2]), ", factor ", to_string(inputs[3]));
  return {inputs[0]};
}

std::string rule_bias(const Attrs&, Types) { return "e,e,,->e; whole e"; }

void reference_bias(const Attrs&, Tensors inputs, std::span<Tensor> outputs) {
  const std::vector<int64_t> load = load_integers(inputs[1]);
  const double speed = get_element(inputs[2], 0);
  const bool update = get_element(inputs[3], 0) >= 0;
  const int64_t experts = static_cast<int64_t>(load.size());
  int64_t sum = 0;
  for (int64_t l : load) sum += l;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t gap = sum - experts * load[e];  // sign of mean - load, exactly
    const double sign = gap > 0 ? 1.0 : gap < 0 ? -1.0 : 0.0;
    set_element(outputs[0], e, get_element(inputs[0], e) + (update ? speed * sign : 0.0));
  }
}

}  // namespace

constinit const OpDef kAccumulate = {
    "accumulate", infer_accumulate,     rule_accumulate, nullptr,
    cost_one,     reference_accumulate, alias_first};
constinit const OpDef kClear = {"clear",  infer_clear,     rule_clear, nullptr,
                                cost_one, reference_clear, alias_first};
constinit const OpDef kAssign = {"assign", infer_assign,     rule_assign, nullptr,
                                 cost_one, reference_assign, alias_first};
constinit const OpDef kSumSquares = {"sum_squares", infer_sum_squares, rule_sum_squares,
                                     nullptr,       cost_sum_squares,  reference_sum_squares};
constinit const OpDef kClipFactor = {"clip_factor", infer_clip, rule_clip,
                                     nullptr,       cost_one,   reference_clip};
constinit const OpDef kAdamw = {"adamw",    infer_adamw,     rule_adamw, nullptr,
                                cost_adamw, reference_adamw, alias_adamw};
constinit const OpDef kBiasUpdate = {"bias_update", infer_bias,     rule_bias,  nullptr,
                                     cost_one,      reference_bias, alias_first};

}  // namespace moetrain::ops
