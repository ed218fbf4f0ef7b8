// The fusions of compile/fuse on the shapes of one layer: results of one launch are operands of the
// next, as in the graphs they are made from.
#include "runtime/device/cpu/bench_fused.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <list>

#include "base/error.h"
#include "base/text.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/fused_norm.h"
#include "ops/fused_rope.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/projections.h"
#include "ops/swiglu.h"
#include "ops/update.h"
#include "runtime/device/cpu/bench_memory.h"
#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {
namespace {

struct Step {
  const Kernel* kernel;
  Attrs attrs;
  std::vector<Tensor> in, out;
  Pages workspace;
  size_t workspace_bytes;
};

class FusedBench {
 public:
  FusedBench(const BenchKernelOptions& o, DType t) : o_(o), t_(t), pool_(o.threads) {}

  std::string run() {
    norms();
    rotations();
    accumulation();
    products();
    if (t_ == DType::kBF16) update();
    return text_;
  }

 private:
  using Steps = std::vector<const Step*>;

  Tensor tensor(DType dtype, Shape shape, const std::vector<int32_t>& integers = {}) {
    memory_.emplace_back(std::max<int64_t>(1, numel(shape)) * size_of(dtype));
    Tensor t{memory_.back().data(), dtype, std::move(shape)};
    if (is_float(dtype) || !integers.empty()) fill(t, integers);
    return t;
  }

  /// `ragged`: bits of the operands that are rows of experts.
  const Step* step(const OpDef& op, Attrs attrs, std::vector<Tensor> in, unsigned ragged = 0) {
    std::vector<Type> types;
    for (size_t i = 0; i < in.size(); ++i) {
      const Tensor& t = in[i];
      if (ragged >> i & 1)
        types.push_back({t.dtype, {o_.experts, t.rows(), t.cols()}, true});
      else
        types.push_back({t.dtype, t.shape, false});
    }
    const std::vector<Type> results = op.infer(attrs, types);
    std::vector<Tensor> out;
    for (size_t i = 0; i < results.size(); ++i) {
      const int shared = op.alias ? op.alias(attrs, static_cast<int>(i)) : -1;
      const Shape& shape = results[i].shape;
      out.push_back(shared >= 0 ? in[shared]
                                : tensor(results[i].dtype, results[i].ragged
                                                               ? Shape{in[0].rows(), shape.back()}
                                                               : shape));
    }
    const Kernel* kernel = find_kernel(op.name, attrs, types, results);
    MT_CHECK(kernel != nullptr, "no kernel for ", op.name);
    const size_t bytes =
        kernel->workspace ? kernel->workspace(attrs, types, results, pool_.size()) : 0;
    steps_.push_back(
        {kernel, std::move(attrs), std::move(in), std::move(out), Pages(bytes), bytes});
    return &steps_.back();
  }

  double seconds(const Steps& steps) {
    return seconds_of(pool_.size(), [&] {
      for (const Step* s : steps) {
        std::vector<Tensor> out = s->out;
        s->kernel->run({s->attrs, s->in, out, s->workspace.data(), s->workspace_bytes, pool_});
      }
    });
  }

  bool wanted(const std::string& name) const { return name.find(o_.filter) != std::string::npos; }

  void compare(const std::string& name, const std::string& shape, const Steps& apart,
               const Steps& fused) {
    seconds(apart), seconds(fused);
    std::vector<double> times[2];
    for (double spent = 0; times[0].size() < 3 || spent < 2 * o_.seconds_per_case;) {
      times[0].push_back(seconds(apart)), times[1].push_back(seconds(fused));
      spent += times[0].back() + times[1].back();
    }
    for (auto& t : times) std::nth_element(t.begin(), t.begin() + t.size() / 2, t.end());
    const double a = times[0][times[0].size() / 2], f = times[1][times[1].size() / 2];
    char line[200];
    std::snprintf(line, sizeof line, "%-36s %-18s %-5s %10.1f us %10.1f us %7.2f\n", name.c_str(),
                  shape.c_str(), moetrain::name_of(t_), a * 1e6, f * 1e6, f / a);
    text_ += line;
  }

  /// The residual stream is f32; the layers' products are of the dtype under test.
  void norms() {
    if (!wanted(kSum) && !wanted(kSums) && !wanted(kGradient)) return;
    const Shape stream{o_.batch * o_.sequence, o_.hidden};
    const std::string shape = cat(stream[0], "x", stream[1]);
    const bool narrow = t_ == DType::kBF16;
    const Tensor x = tensor(DType::kF32, stream), y = tensor(t_, stream), z = tensor(t_, stream);
    const Tensor dy = tensor(t_, stream), gain = tensor(DType::kF32, {o_.hidden});
    const Attrs norm{{"eps", 1e-6}, {"dtype", std::string(moetrain::name_of(t_))}};
    const Step* sum = step(ops::kAdd, {}, {x, y});
    const Step* after = step(ops::kRmsNorm, norm, {sum->out[0], gain});
    if (wanted(kSum))
      compare(kSum, shape, {sum, after}, {step(ops::kAddRmsNorm, norm, {x, y, gain})});
    if (wanted(kSums)) {
      const Step* again = step(ops::kAdd, {}, {sum->out[0], z});
      const Step* last = step(ops::kRmsNorm, norm, {again->out[0], gain});
      compare(kSums, shape, {sum, again, last}, {step(ops::kAddRmsNorm, norm, {x, y, z, gain})});
    }
    if (wanted(kGradient)) {
      const Tensor other = tensor(DType::kF32, stream);
      const Step* grad = step(ops::kRmsNormGrad, {}, {dy, x, gain, after->out[1]});
      Steps apart{grad, step(ops::kAdd, {}, {other, grad->out[0]})};
      Attrs attrs;
      if (narrow) {
        attrs.set("copy", std::string("bf16"));
        apart.push_back(step(ops::kCast, {{"dtype", std::string("bf16")}}, {apart.back()->out[0]}));
      }
      compare(kGradient, shape, apart,
              {step(ops::kRmsNormGradAdd, attrs, {dy, x, gain, after->out[1], other})});
    }
  }

  /// The joint latent is f32, what is made of it of the dtype under test.
  void rotations() {
    if (!wanted(kJoint) && !wanted(kJointGradient) && !wanted(kQueries)) return;
    const int64_t b = o_.batch, s = o_.sequence, c = o_.latent, r = o_.rope;
    const bool narrow = t_ == DType::kBF16;
    const std::string shape = cat(b * s, "x", c, "+", r);
    const Attrs turns{{"rope_dim", r},
                      {"frequencies", std::vector<double>(r / 2, 0.1)},
                      {"amplitude", 1.0},
                      {"interleave", int64_t{1}}};
    std::vector<int32_t> order;
    for (int64_t i = 0; i < b * s; ++i) order.push_back(static_cast<int32_t>(i % s));
    const Tensor pos = tensor(DType::kI32, {b, s}, order), gain = tensor(DType::kF32, {c});
    const Tensor joint = tensor(DType::kF32, {b, s, c + r});
    const std::string type(moetrain::name_of(t_));
    Attrs norm{{"eps", 1e-6}, {"dtype", type}}, both = turns, back = turns;
    both.set("eps", 1e-6).set("dtype", type).set("rope_dtype", type);
    back.set("inverse", int64_t{1});
    const Step* split = step(ops::kSplit, {{"sizes", std::vector<int64_t>{c, r}}}, {joint});
    const Step* normed = step(ops::kRmsNorm, norm, {split->out[0], gain});
    Steps apart{split, normed, step(ops::kRope, turns, {split->out[1], pos})};
    if (narrow) apart.push_back(step(ops::kCast, {{"dtype", type}}, {apart.back()->out[0]}));
    if (wanted(kJoint))
      compare(kJoint, shape, apart, {step(ops::kNormRope, both, {joint, gain, pos})});
    const Tensor dy = tensor(t_, {b, s, c}), dk = tensor(t_, {b, s, r});
    apart.clear();
    Tensor turned = dk;
    if (narrow) {
      apart.push_back(step(ops::kCast, {{"dtype", std::string("f32")}}, {dk}));
      turned = apart.back()->out[0];
    }
    apart.push_back(step(ops::kRope, back, {turned, pos}));
    const Tensor rotary = apart.back()->out[0];
    apart.push_back(step(ops::kRmsNormGrad, {}, {dy, split->out[0], gain, normed->out[1]}));
    apart.push_back(step(ops::kConcat, {}, {apart.back()->out[0], rotary}));
    if (narrow) apart.push_back(step(ops::kCast, {{"dtype", type}}, {apart.back()->out[0]}));
    back.set("dtype", type);
    if (wanted(kJointGradient)) {
      compare(kJointGradient, shape, apart,
              {step(ops::kNormRopeGrad, back, {dy, joint, gain, normed->out[1], dk, pos})});
    }
    if (wanted(kQueries)) {
      Attrs in_place = turns;
      in_place.set("in_place", int64_t{1});
      const Tensor q = tensor(t_, {b, s, o_.heads, o_.nope + r});
      compare(kQueries, cat(b * s, "x", o_.heads, " heads"), {step(ops::kRope, turns, {q, pos})},
              {step(ops::kRope, in_place, {q, pos})});
    }
  }

  void accumulation() {
    const int64_t n = o_.batch * o_.sequence, d = o_.hidden, w = o_.expert_width, e = o_.experts;
    const Attrs in_place{{"accumulate", int64_t{1}}};
    if (wanted(kDense)) {
      const Tensor dy = tensor(t_, {n, o_.ffn}), x = tensor(t_, {n, d});
      const Tensor sum = tensor(DType::kF32, {o_.ffn, d});
      const Step* own = step(ops::kMatmulDw, {}, {dy, x});
      compare(kDense, cat(n, "x", o_.ffn, "x", d),
              {own, step(ops::kAccumulate, {}, {sum, own->out[0]})},
              {step(ops::kMatmulDw, in_place, {dy, x, sum})});
    }
    if (wanted(kGrouped)) {
      const int64_t each = 48;
      std::vector<int32_t> offsets;
      for (int64_t i = 0; i <= e; ++i) offsets.push_back(static_cast<int32_t>(i * each));
      const Tensor dy = tensor(t_, {e * each, w}), x = tensor(t_, {e * each, d});
      const Tensor plan = tensor(DType::kI32, {e + 1}, offsets);
      const Tensor sum = tensor(DType::kF32, {e, w, d});
      const Step* own = step(ops::kGroupedMatmulDw, {}, {dy, x, plan}, 0b11);
      compare(kGrouped, cat(e, " x ", each, "x", w, "x", d),
              {own, step(ops::kAccumulate, {}, {sum, own->out[0]})},
              {step(ops::kGroupedMatmulDw, in_place, {dy, x, plan, sum}, 0b11)});
    }
  }

  void products() {
    const int64_t tokens = o_.batch * o_.sequence;
    joined(tokens, 0, {o_.hidden / 2, o_.hidden * 5 / 16});
    joined(tokens, 0, {o_.expert_width, o_.expert_width});
    joined(tokens, 0, {o_.ffn, o_.ffn});
    for (int64_t each : {int64_t{512}, int64_t{48}, int64_t{8}})
      joined(each, o_.experts, {o_.expert_width, o_.expert_width});
  }

  /// Products of one input of `each` rows (for each of the experts, if there are any).
  void joined(int64_t each, int64_t experts, std::array<int64_t, 2> n) {
    if (!wanted(kForward) && !wanted(kBackward) && !wanted(kWeights) && !wanted(kGated) &&
        !wanted(kGatedGradient))
      return;
    const bool grouped = experts > 0;
    const int64_t rows = grouped ? each * experts : each, k = o_.hidden;
    std::vector<int32_t> offsets;
    for (int64_t i = 0; i <= experts; ++i) offsets.push_back(static_cast<int32_t>(i * each));
    const Tensor plan = tensor(DType::kI32, {experts + 1}, offsets);
    auto with_plan = [&](std::vector<Tensor> in, const std::vector<Tensor>& behind = {}) {
      if (grouped) in.push_back(plan);
      in.insert(in.end(), behind.begin(), behind.end());
      return in;
    };
    auto weight = [&](DType t, int64_t out) {
      return tensor(t, grouped ? Shape{experts, out, k} : Shape{out, k});
    };
    Attrs both{{"count", int64_t{2}}};
    if (grouped) both.set("grouped", int64_t{1});
    auto more = [&](const char* name, AttrValue value) {
      Attrs attrs = both;
      attrs.set(name, std::move(value));
      return attrs;
    };
    const OpDef& forward = grouped ? ops::kGroupedMatmul : ops::kMatmul;
    const OpDef& dx = grouped ? ops::kGroupedMatmulDx : ops::kMatmulDx;
    const OpDef& dw = grouped ? ops::kGroupedMatmulDw : ops::kMatmulDw;
    const unsigned one = grouped ? 1 : 0, two = grouped ? 3 : 0, three = grouped ? 7 : 0;
    const std::string shape = cat(grouped ? cat(experts, " x ") : "", each, "x", n[0], "+", n[1]);

    const Tensor x = tensor(t_, {rows, k}), w0 = weight(t_, n[0]), w1 = weight(t_, n[1]);
    const Step* y0 = step(forward, {}, with_plan({x, w0}), one);
    const Step* y1 = step(forward, {}, with_plan({x, w1}), one);
    const Tensor dy0 = y0->out[0], dy1 = y1->out[0];
    if (wanted(kForward))
      compare(kForward, shape, {y0, y1},
              {step(ops::kProjections, both, with_plan({x, w0, w1}), one)});
    if (wanted(kBackward)) {
      const Step* first = step(dx, {}, with_plan({dy0, w0}), one);
      const Step* second = step(dx, {}, with_plan({dy1, w1}), one);
      compare(kBackward, shape,
              {first, second, step(ops::kAdd, {}, {first->out[0], second->out[0]})},
              {step(ops::kProjectionsDx, both, with_plan({dy0, dy1, w0, w1}), two)});
    }
    if (wanted(kWeights)) {
      const Tensor sum0 = weight(DType::kF32, n[0]), sum1 = weight(DType::kF32, n[1]);
      const Attrs in_place{{"accumulate", int64_t{1}}};
      compare(kWeights, shape,
              {step(dw, in_place, with_plan({dy0, x}, {sum0}), two),
               step(dw, in_place, with_plan({dy1, x}, {sum1}), two)},
              {step(ops::kProjectionsDw, more("accumulate", int64_t{1}),
                    with_plan({dy0, dy1, x}, {sum0, sum1}), three)});
    }
    if (n[0] != n[1]) return;
    if (wanted(kGated))
      compare(kGated, shape, {y0, y1, step(ops::kSwiglu, {}, {dy0, dy1})},
              {step(ops::kProjections, more("act", std::string("swiglu")),
                    with_plan({x, w0, w1}), one)});
    if (wanted(kGatedGradient)) {
      // The down projection's input gradient: dh = x v with v [k, n].
      const Tensor v = tensor(t_, grouped ? Shape{experts, k, n[0]} : Shape{k, n[0]});
      const Step* dh = step(dx, {}, with_plan({x, v}), one);
      const Attrs attrs = grouped ? Attrs{{"grouped", int64_t{1}}} : Attrs{};
      compare(kGatedGradient, shape, {dh, step(ops::kSwigluGrad, {}, {dh->out[0], dy0, dy1})},
              {step(ops::kMatmulDxSwiglu, attrs, with_plan({x, v, dy0, dy1}), grouped ? 0b1101 : 0)});
    }
  }

  void update() {
    if (!wanted(kCopy)) return;
    const Shape w{o_.experts, o_.expert_width, o_.hidden};
    std::vector<Tensor> in;
    for (int i = 0; i < 4; ++i) in.push_back(tensor(DType::kF32, w));
    in.push_back(tensor(DType::kF32, {})), in.push_back(tensor(DType::kF32, {4}));
    // Squares are not negative, nor are the factor and the rates.
    for (size_t i : {size_t{2}, size_t{4}, size_t{5}}) {
      for (int64_t k = 0; k < in[i].numel(); ++k) in[i].as<float>()[k] = 0.01f;
    }
    Attrs attrs{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}};
    const Tensor copy = tensor(DType::kBF16, w);
    const Steps apart{step(ops::kAdamw, attrs, in), step(ops::kAssign, {}, {copy, in[0]})};
    attrs.set("copy", int64_t{1});
    in.push_back(copy);
    compare(kCopy, cat(numel(w)), apart, {step(ops::kAdamw, attrs, in)});
  }

  static constexpr const char* kForward = "projections";
  static constexpr const char* kBackward = "projections_dx (matmul_dx + sum)";
  static constexpr const char* kWeights = "projections_dw (accumulate)";
  static constexpr const char* kGated = "projections + swiglu";
  static constexpr const char* kGatedGradient = "matmul_dx + swiglu_grad";
  static constexpr const char* kSum = "sum + rms_norm";
  static constexpr const char* kSums = "sum + sum + rms_norm";
  static constexpr const char* kGradient = "rms_norm_grad + sum (+ cast)";
  static constexpr const char* kJoint = "split + rms_norm + rope (+ cast)";
  static constexpr const char* kJointGradient = "rms_norm_grad + rope + concat";
  static constexpr const char* kQueries = "rope in place";
  static constexpr const char* kDense = "matmul_dw + accumulate";
  static constexpr const char* kGrouped = "grouped_matmul_dw + accumulate";
  static constexpr const char* kCopy = "adamw + assign";

  const BenchKernelOptions& o_;
  const DType t_;
  ThreadPool pool_;
  std::list<Pages> memory_;
  std::list<Step> steps_;
  std::string text_;
};

}  // namespace

std::string bench_fused(const BenchKernelOptions& options) {
  std::string text;
  for (DType dtype : options.dtypes) text += FusedBench(options, dtype).run();
  if (text.empty()) return text;
  char head[200];
  std::snprintf(head, sizeof head, "\n%-36s %-18s %-5s %13s %13s %7s\n", "fused", "shape", "dtype",
                "apart", "fused", "ratio");
  return head + text;
}

}  // namespace moetrain::cpu
