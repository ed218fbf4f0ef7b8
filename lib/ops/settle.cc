// Settle: the identity that asks for a finished sum.
#include "ops/settle.h"

#include <cstring>

namespace moetrain::ops {

namespace {

std::vector<Type> infer(const Attrs&, std::span<const Type> in) { return {in[0]}; }
std::string rule(const Attrs&, std::span<const Type>) { return "*->*"; }
Cost cost(const Attrs&, std::span<const Type>, std::span<const Type>) { return {}; }
void reference(const Attrs&, std::span<const Tensor> in, std::span<Tensor> out) {
  if (out[0].data != in[0].data) std::memcpy(out[0].data, in[0].data, in[0].bytes());
}
int alias(const Attrs&, int) { return 0; }

}  // namespace

const OpDef kSettle{"settle", infer, rule, nullptr, cost, reference, alias};

Value settle(Graph& g, Value x, const std::string& name) { return g.add(kSettle, {x}, {}, name); }

}  // namespace moetrain::ops
