// Rules of the rank grid: world size, expert groups, what tensor and context ranks split, batches,
// nodes.
#include <algorithm>

#include "config/rules.h"

namespace moetrain {

namespace {

void check_batch(Rules& r, const std::string& path, int64_t batch) {
  const int64_t micro = r.config.train.micro_batch_size, data = *r.config.parallel.data;
  r.divides(path, "global_batch_size", batch, "micro_batch_size x data", micro * data);
}

void check_nodes(Rules& r) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t per_node = *p.ranks_per_node;
  if (r.world_size > per_node)
    r.divides("parallel.ranks_per_node", "world size", r.world_size, "ranks_per_node", per_node);
  if (p.dispatch != Dispatch::kAllGather && p.dispatch != Dispatch::kDedup) return;
  const int64_t group = p.expert_group();
  if (group % per_node != 0 && per_node % group != 0)
    r.refuse("parallel.dispatch",
             "`parallel.dispatch: ", kDispatchNames[static_cast<int>(p.dispatch)],
             "` needs expert groups of whole nodes or inside one node, but an expert group spans ",
             *p.tp_extend_ep ? "expert x tensor = " : "expert = ", group,
             " ranks and ranks_per_node is ", per_node,
             "; choose alltoall, or a group that is a multiple or divisor of ", per_node);
}

}  // namespace

void check_ranks(Rules& r) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t data = *p.data, others = p.tensor * p.pipeline * p.context;
  const bool follows = r.config.where("parallel.data") == r.config.where("parallel");
  if (data * others != r.world_size) {
    const std::string formula = cat("data x tensor x pipeline x context = ", data, " x ", p.tensor,
                                    " x ", p.pipeline, " x ", p.context, " = ", data * others);
    if (r.world_size < others || follows)
      r.refuse("parallel", "world size ", r.world_size,
               " must be a multiple of tensor x pipeline x context = ", p.tensor, " x ", p.pipeline,
               " x ", p.context, " = ", others, "; start ", nearest_multiples(r.world_size, others),
               " ranks, or change `parallel`");
    else
      r.refuse("parallel.data", "world size ", r.world_size, " must be ", formula, "; start ",
               data * others, " ranks, or set parallel.data",
               r.world_size % others == 0 ? cat(" to ", r.world_size / others, " or auto")
                                          : std::string(" to auto and change the others"));
  }
  const int64_t replicas = data * p.context;
  if (replicas % p.expert != 0)
    r.refuse(
        "parallel.expert",
        "`parallel.expert`: edp x expert = data x context, so expert must divide data x context = ",
        data, " x ", p.context, " = ", replicas, ", but ", replicas, " % ", p.expert, " = ",
        replicas % p.expert, "; nearest expert: ", nearest_divisors(replicas, p.expert),
        *p.tp_extend_ep && p.tensor > 1 ? " (tp_extend_ep multiplies it by tensor by itself)" : "");
  check_batch(r, "train.global_batch_size", r.config.train.global_batch_size);
  for (size_t i = 0; i < r.config.train.batch_ramp.size(); ++i)
    check_batch(r, cat("train.batch_ramp.", i, ".global_batch_size"),
                r.config.train.batch_ramp[i].global_batch_size);
  check_nodes(r);
}

void check_splits(Rules& r) {
  const ParallelConfig& p = r.config.parallel;
  const ModelConfig& m = r.config.model;
  const int64_t sequence = r.config.data.sequence_length;
  const bool routed =
      m.first_k_dense_replace < m.num_hidden_layers || m.num_nextn_predict_layers > 0;
  r.divides("parallel.tensor", "model.num_attention_heads", m.num_attention_heads, "tensor",
            p.tensor);
  r.divides("parallel.tensor", "model.vocab_size", m.vocab_size, "tensor", p.tensor);
  if (m.first_k_dense_replace > 0)
    r.divides("parallel.tensor", "model.intermediate_size", m.intermediate_size, "tensor",
              p.tensor);
  if (routed && m.n_shared_experts > 0)
    r.divides("parallel.tensor", "model.n_shared_experts x moe_intermediate_size", m.shared_width(),
              "tensor", p.tensor);
  if (routed) {
    if (*p.tp_extend_ep) {
      r.divides("parallel.tp_extend_ep", "model.n_routed_experts", m.n_routed_experts,
                "expert x tensor", p.expert * p.tensor);
    } else {
      r.divides("parallel.expert", "model.n_routed_experts", m.n_routed_experts, "expert",
                p.expert);
      r.divides("parallel.tensor", "model.moe_intermediate_size", m.moe_intermediate_size, "tensor",
                p.tensor);
    }
  }
  if (*p.sequence_parallel && p.tensor > 1)
    r.divides("parallel.sequence_parallel", "data.sequence_length", sequence, "context x tensor",
              p.context * p.tensor);
  else
    r.divides("parallel.context", "data.sequence_length", sequence, "context", p.context);
  if (*p.tp_extend_ep && p.tensor > 1 && !*p.sequence_parallel)
    r.refuse("parallel.tp_extend_ep",
             "`parallel.tp_extend_ep: true` needs sequence_parallel, so that every tensor rank "
             "routes its own tokens; "
             "set parallel.sequence_parallel: true or tp_extend_ep: false");
}

}  // namespace moetrain
