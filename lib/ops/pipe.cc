// Types of the transfers between pipeline stages.
#include "ops/pipe.h"

#include "base/error.h"
#include "ops/common.h"

namespace moetrain::ops {

namespace {

using Types = std::span<const Type>;

std::vector<Type> send_types(const Attrs& attrs, Types in) {
  MT_CHECK(in.size() == 1 && !in[0].ragged && attrs.integers("ranks").size() == 2, "send");
  return {};
}

std::vector<Type> recv_types(const Attrs& attrs, Types in) {
  MT_CHECK(in.empty() && attrs.integers("ranks").size() == 2, "recv");
  return {{static_cast<DType>(attrs.integer("dtype")), attrs.integers("shape"), false}};
}

}  // namespace

const OpDef kSend{"send", send_types, no_rule, nullptr, moving_cost, nullptr};
const OpDef kRecv{"recv", recv_types, no_rule, nullptr, moving_cost, nullptr};

bool is_transfer(const OpDef& op) { return &op == &kSend || &op == &kRecv; }

}  // namespace moetrain::ops
