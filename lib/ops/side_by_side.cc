// Independent ops in one launch: every question is passed on to the parts.
#include "ops/side_by_side.h"

#include "ops/common.h"

namespace moetrain::ops {
namespace {

std::vector<Type> infer(const Attrs& attrs, std::span<const Type> inputs) {
  std::vector<Type> types;
  size_t at = 0;
  for (const BodyPart& part : attrs.body("body")) {
    MT_CHECK(at + part.inputs <= inputs.size(), "side_by_side: ", inputs.size(), " operands are too few");
    const std::vector<Type> own = part.op->infer(part.attrs, inputs.subspan(at, part.inputs));
    MT_CHECK(static_cast<int>(own.size()) == part.outputs, "side_by_side: ", part.op->name, " has ",
             own.size(), " results, not ", part.outputs);
    types.insert(types.end(), own.begin(), own.end());
    at += part.inputs;
  }
  check_count("side_by_side", inputs.size(), at);
  return types;
}

Cost cost(const Attrs& attrs, std::span<const Type> inputs, std::span<const Type> outputs) {
  Cost sum;
  for (const BodyPart& part : attrs.body("body")) {
    const Cost own = part.op->cost(part.attrs, inputs.first(part.inputs), outputs.first(part.outputs));
    sum.matmul_flops += own.matmul_flops;
    sum.vector_flops += own.vector_flops;
    sum.bytes += own.bytes;
    inputs = inputs.subspan(part.inputs);
    outputs = outputs.subspan(part.outputs);
  }
  return sum;
}

void reference(const Attrs& attrs, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  for (const BodyPart& part : attrs.body("body")) {
    part.op->reference(part.attrs, inputs.first(part.inputs), outputs.first(part.outputs));
    inputs = inputs.subspan(part.inputs);
    outputs = outputs.subspan(part.outputs);
  }
}

int alias(const Attrs& attrs, int output) {
  int inputs = 0;
  for (const BodyPart& part : attrs.body("body")) {
    if (output < part.outputs) {
      const int own = part.op->alias ? part.op->alias(part.attrs, output) : -1;
      return own < 0 ? -1 : inputs + own;
    }
    output -= part.outputs;
    inputs += part.inputs;
  }
  return -1;
}

}  // namespace

const OpDef kSideBySide{"side_by_side", infer, no_rule, nullptr, cost, reference, alias};

}  // namespace moetrain::ops
