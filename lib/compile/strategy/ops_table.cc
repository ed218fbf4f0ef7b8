// Which ops of the model do what with tokens: the one table the strategies share.
#include "base/text.h"
#include "compile/strategy/row_makers.h"

namespace moetrain {

const std::vector<std::string>& sequence_ops() {
  static const std::vector<std::string> patterns{
      "layers.*.attn.norm",  "layers.*.attn.q_a",   "layers.*.attn.q_a_norm",
      "layers.*.attn.kv_a",  "layers.*.attn.kv_a_norm", "layers.*.attn.k_rope",
      "layers.*.mlp.norm",   "layers.*.moe.router", "layers.*.moe.route",
      "layers.*.mtp.enorm",  "layers.*.mtp.hnorm",  "layers.*.mtp.eh_proj",
      "layers.*.mtp.norm",   "final_norm"};
  return patterns;
}

const std::vector<TensorOp>& tensor_ops() {
  static const std::vector<TensorOp> ops{
      {"embed", 'v'},
      {"layers.*.mtp.embed", 'v'},
      {"layers.*.attn.q", 'n'},
      {"layers.*.attn.q_b", 'n'},
      {"layers.*.attn.kv_b", 'n'},
      {"layers.*.attn.q_rope", 'h'},
      {"layers.*.attn.core", 'h'},
      {"layers.*.attn.o", 'k'},
      {"layers.*.mlp.gate", 'n'},
      {"layers.*.mlp.up", 'n'},
      {"layers.*.mlp.down", 'k'},
      {"head", 'v'},
      {"head.*", 'v'},
      {"layers.*.head.*", 'v'},
      {"head.logits*", 'n'},
      {"layers.*.head.logits*", 'n'},
  };
  return ops;
}

const std::vector<TensorOp>& shared_expert_ops() {
  static const std::vector<TensorOp> ops{{"layers.*.moe.shared.gate", 'n'},
                                         {"layers.*.moe.shared.up", 'n'},
                                         {"layers.*.moe.shared.down", 'k'}};
  return ops;
}

bool splits_shared_experts(const ParallelOptions& options, const Graph& graph) {
  if (options.tensor == 1 || !options.sequence_parallel) return true;
  if (options.tensor == 2) return false;
  constexpr double kSmall = 64.0 * 1024 * 1024;
  for (const Node& node : graph.nodes) {
    if (!glob_match("*.mlp.shared_experts.gate_proj.weight", node.name)) continue;
    const Type& type = node.outputs[0];
    return 3.0 * static_cast<double>(numel(type.shape)) * static_cast<double>(size_of(type.dtype)) >=
           kSmall;
  }
  return true;
}

}  // namespace moetrain
