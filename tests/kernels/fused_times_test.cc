// Times fused kernels against the kernels they replace; disabled, because times are no test.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <list>

#include "graph/op.h"
#include "ops/basic.h"
#include "ops/fused_norm.h"
#include "ops/norm.h"
#include "ops/update.h"
#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu::testing {
namespace {

/// Launches with their tensors; results of one are operands of the next.
class Bench {
 public:
  Tensor tensor(DType dtype, Shape shape) {
    memory_.emplace_back(numel(shape) * size_of(dtype) + 256);
    Tensor t{memory_.back().data(), dtype, shape};
    for (int64_t i = 0; is_float(dtype) && i < t.numel(); ++i)
      set_element(t, i, 0.01 * (i % 97 + 1));
    return t;
  }

  struct Step {
    const Kernel* kernel;
    Attrs attrs;
    std::vector<Tensor> in, out;
    std::vector<std::byte> workspace;
  };

  Step& step(const OpDef& op, Attrs attrs, std::vector<Tensor> in) {
    std::vector<Type> in_types;
    for (const Tensor& t : in) in_types.push_back({t.dtype, t.shape});
    const std::vector<Type> out_types = op.infer(attrs, in_types);
    std::vector<Tensor> out;
    for (size_t i = 0; i < out_types.size(); ++i) {
      const int shared = op.alias ? op.alias(attrs, static_cast<int>(i)) : -1;
      out.push_back(shared >= 0 ? in[shared] : tensor(out_types[i].dtype, out_types[i].shape));
    }
    const Kernel* kernel = find_kernel(op.name, attrs, in_types, out_types);
    EXPECT_NE(kernel, nullptr) << op.name;
    steps_.push_back({kernel, attrs, std::move(in), std::move(out), {}});
    if (kernel->workspace) {
      steps_.back().workspace.resize(kernel->workspace(attrs, in_types, out_types, 1));
    }
    return steps_.back();
  }

  void compare(const char* name, const std::vector<Step*>& apart, const std::vector<Step*>& fused) {
    std::vector<double> times[2];
    for (int round = 0; round < 41; ++round) {
      for (int which = 0; which < 2; ++which) {
        const auto begin = std::chrono::steady_clock::now();
        for (Step* s : which ? fused : apart) {
          s->kernel->run(
              {s->attrs, s->in, s->out, s->workspace.data(), s->workspace.size(), pool_});
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        times[which].push_back(took.count());
      }
    }
    for (auto& t : times) std::sort(t.begin(), t.end());
    const double a = times[0][10], f = times[1][10];
    std::printf("%-28s apart %.3f ms, fused %.3f ms, ratio %.2f\n", name, a * 1e3, f * 1e3, f / a);
  }

 private:
  std::list<std::vector<std::byte>> memory_;
  std::list<Step> steps_;
  ThreadPool pool_{1};
};

TEST(FusedTimes, DISABLED_AgainstApart) {
  Bench b;
  const Shape stream{4, 512, 512};
  const Tensor x = b.tensor(DType::kF32, stream), y = b.tensor(DType::kF32, stream);
  const Tensor z = b.tensor(DType::kF32, stream), dy = b.tensor(DType::kBF16, stream);
  const Tensor gain = b.tensor(DType::kF32, {512});
  const Attrs bf16{{"dtype", std::string("bf16")}}, copy{{"copy", std::string("bf16")}};
  const Attrs narrow{{"eps", 1e-6}, {"dtype", std::string("bf16")}}, wide{{"eps", 1e-6}};
  Attrs both = wide;
  both.set("copy", std::string("bf16"));

  auto& sum = b.step(ops::kAdd, {}, {x, y});
  auto& norm = b.step(ops::kRmsNorm, narrow, {sum.out[0], gain});
  b.compare("sum + norm", {&sum, &norm}, {&b.step(ops::kAddRmsNorm, narrow, {x, y, gain})});

  auto& again = b.step(ops::kAdd, {}, {sum.out[0], z});
  auto& after = b.step(ops::kRmsNorm, narrow, {again.out[0], gain});
  b.compare("sum + sum + norm", {&sum, &again, &after},
            {&b.step(ops::kAddRmsNorm, narrow, {x, y, z, gain})});

  auto& full = b.step(ops::kRmsNorm, wide, {sum.out[0], gain});
  auto& cast = b.step(ops::kCast, bf16, {full.out[0]});
  b.compare("sum + norm + cast", {&sum, &full, &cast},
            {&b.step(ops::kAddRmsNorm, both, {x, y, gain})});

  auto& grad = b.step(ops::kRmsNormGrad, {}, {dy, x, gain, norm.out[1]});
  auto& meet = b.step(ops::kAdd, {}, {y, grad.out[0]});
  auto& round = b.step(ops::kCast, bf16, {meet.out[0]});
  b.compare("norm gradient + sum + cast", {&grad, &meet, &round},
            {&b.step(ops::kRmsNormGradAdd, copy, {dy, x, gain, norm.out[1], y})});

  const Shape weight{1408, 512};
  const Attrs adam{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}};
  Attrs adam_copy = adam;
  adam_copy.set("copy", int64_t{1});
  const Tensor p = b.tensor(DType::kF32, weight), half = b.tensor(DType::kBF16, weight);
  const std::vector<Tensor> in{p,
                               b.tensor(DType::kF32, weight),
                               b.tensor(DType::kF32, weight),
                               b.tensor(DType::kF32, weight),
                               b.tensor(DType::kF32, {}),
                               b.tensor(DType::kF32, {4})};
  std::vector<Tensor> more = in;
  more.push_back(half);
  b.compare("adamw + assign",
            {&b.step(ops::kAdamw, adam, in), &b.step(ops::kAssign, {}, {half, p})},
            {&b.step(ops::kAdamw, adam_copy, more)});
}

}  // namespace
}  // namespace moetrain::cpu::testing
