// Every operator of a training step that touches more than a few numbers has a fast CPU kernel.
#include <gtest/gtest.h>

#include <set>

#include "compile/compile.h"
#include "ops/basic.h"
#include "runtime/device/cpu/kernels/kernels.h"
#include "tiny_model.h"

namespace moetrain::test {
namespace {

/// Work below this is not worth a kernel: counts, scalars, one number per expert.
constexpr int64_t kTiny = 2048;

class FastKernels : public testing::TestWithParam<std::tuple<DType, bool>> {};

TEST_P(FastKernels, CoverTheTape) {
  const auto [compute, fusion] = GetParam();
  CompileRequest request;
  request.fusion = fusion;
  const Compiled compiled = compile(training_graph(tiny_model(64), compute, 256), request);
  std::set<std::string> slow;
  for (const Segment& segment : compiled.plan.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const Launch* launch = std::get_if<Launch>(&instruction.what);
      if (launch == nullptr || launch->op == &ops::kReshape) {
        continue;
      }
      std::vector<Type> in, out;
      int64_t largest = 0;
      for (int s : launch->in) {
        in.push_back(compiled.plan.slots[s].type);
        largest = std::max(largest, numel(in.back().shape));
      }
      for (int s : launch->out) {
        out.push_back(compiled.plan.slots[s].type);
        largest = std::max(largest, numel(out.back().shape));
      }
      if (largest <= kTiny) continue;
      if (!launch->attrs.has("body")) {
        if (!cpu::find_kernel(launch->op->name, launch->attrs, in, out)) slow.insert(launch->op->name);
        continue;
      }
      std::span<const Type> ins(in), outs(out);
      for (const BodyPart& part : launch->attrs.body("body")) {
        const auto own_in = ins.first(part.inputs), own_out = outs.first(part.outputs);
        int64_t own = 0;
        for (const Type& t : own_in) own = std::max(own, numel(t.shape));
        if (own > kTiny && !cpu::find_kernel(part.op->name, part.attrs, own_in, own_out))
          slow.insert(part.op->name);
        ins = ins.subspan(part.inputs);
        outs = outs.subspan(part.outputs);
      }
    }
  }
  for (const std::string& op : slow) ADD_FAILURE() << op << " runs its reference loops";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FastKernels,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Bool()));

}  // namespace
}  // namespace moetrain::test
