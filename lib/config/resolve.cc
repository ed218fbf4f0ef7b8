// Fills in every `auto` that follows from the rank count.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "config/validate.h"

namespace moetrain {

namespace {

template <class T>
void decide(Config& config, const std::string& path, Auto<T>& place, T value, std::string why) {
  if (!place.is_auto()) return;
  place = value;
  config.origins[path] = {Origin::kAuto, std::move(why)};
}

}  // namespace

int64_t smallest_world_size(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const int64_t data = p.data.value_or(p.expert / std::gcd(p.expert, p.context));
  return data * p.tensor * p.pipeline * p.context;
}

void resolve(Config& config, int64_t world_size, int64_t ranks_per_node) {
  ParallelConfig& p = config.parallel;
  const ModelConfig& m = config.model;
  decide(config, "model.num_key_value_heads", config.model.num_key_value_heads,
         m.num_attention_heads, "num_attention_heads");
  decide(config, "data.seed", config.data.seed, config.run.seed, "run.seed");
  const int64_t others = p.tensor * p.pipeline * p.context;
  decide(config, "parallel.data", p.data, std::max<int64_t>(1, world_size / others),
         cat("world size ", world_size, " / (tensor x pipeline x context = ", others, ")"));
  decide(config, "parallel.ranks_per_node", p.ranks_per_node,
         ranks_per_node > 0 ? ranks_per_node : world_size,
         ranks_per_node > 0 ? "as launched" : "no launcher says otherwise: one node");

  const int64_t pieces = p.context * p.tensor;
  const bool divides = config.data.sequence_length % pieces == 0;
  decide(config, "parallel.sequence_parallel", p.sequence_parallel, p.tensor > 1 && divides,
         p.tensor == 1
             ? std::string("tensor is 1")
             : cat("tensor > 1 and sequence_length ", config.data.sequence_length,
                   divides ? " is" : " is not", " divisible by context x tensor = ", pieces));
  const int64_t group = p.expert * p.tensor;
  const bool whole = group > 0 && m.n_routed_experts % group == 0;
  decide(config, "parallel.tp_extend_ep", p.tp_extend_ep, *p.sequence_parallel && whole,
         !*p.sequence_parallel
             ? std::string("no sequence_parallel")
             : cat("sequence_parallel and n_routed_experts ", m.n_routed_experts,
                   whole ? " is" : " is not", " divisible by expert x tensor = ", group));
}

}  // namespace moetrain
