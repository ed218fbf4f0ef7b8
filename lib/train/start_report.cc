// What a run says about itself.
#include "train/start_report.h"

#include "base/text.h"
#include "model/flops.h"

namespace moetrain {

std::string start_report(const Config& config, const Session& session, int world,
                         int64_t total_steps) {
  const ParallelConfig& p = config.parallel;
  const ParameterCounts counts = count_parameters(config.model);
  int64_t decayed = 0, plain = 0, decayed_tensors = 0, plain_tensors = 0;
  for (const Parameter& q : session.parameters()) {
    if (!q.trained) continue;
    (q.decayed ? decayed : plain) += numel(q.shape);
    (q.decayed ? decayed_tensors : plain_tensors) += static_cast<int64_t>(q.published.size());
  }
  double compile_seconds = 0;
  for (const PassTime& t : session.compiled().passes) compile_seconds += t.seconds;
  const Plan& plan = session.plan();
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "%.2f M parameters, %.2f M active per token, %.1f MFLOP",
                counts.total / 1e6, counts.active / 1e6,
                training_flops_per_token(config.model, config.data.sequence_length) / 1e6);
  return cat(
      numbers, " per token and step\n",
      "weight decay ", config.optimizer.weight_decay, " on ", decayed_tensors, " tensors (", decayed,
      " values), none on ", plain_tensors, " (", plain, " values)\n",
      world, " ranks = data ", *p.data, " x tensor ", p.tensor, " x pipeline ", p.pipeline,
      " x context ", p.context, "; expert ", p.expert, "; ZeRO ", p.zero, "; ",
      session.device().describe(), "; ",
      config.compute.precision == Precision::kBf16 ? "bf16" : "fp32", "\n", total_steps,
      " steps of ", config.train.global_batch_size, " sequences of ", config.data.sequence_length,
      " tokens\nrank 0 needs ", human_bytes(static_cast<double>(plan.state_bytes())),
      " for states, ", human_bytes(static_cast<double>(plan.arena_bytes)), " for activations, ",
      human_bytes(static_cast<double>(plan.ragged_bytes)), " for token rows when balanced (",
      human_bytes(static_cast<double>(plan.ragged_bytes_worst)), " at worst); compiled ",
      session.graph().nodes.size(), " nodes in ", static_cast<int64_t>(compile_seconds * 1000),
      " ms");
}

std::string plan_report(const Session& session) {
  return print_collectives(session.plan()) + "\n" + print(session.plan());
}

}  // namespace moetrain
