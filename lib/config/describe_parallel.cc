// Rows of section `parallel`.
#include "config/row.h"

namespace moetrain {

Fields describe(ParallelConfig& c) {
  constexpr double kMostRanks = 1 << 15;  // per factor
  return bounded(
      {
          row("pipeline", &c.pipeline, "pipeline ranks").unit("ranks").at_least(1),
          row("tensor", &c.tensor, "ranks that split heads, widths and vocabulary")
              .unit("ranks")
              .at_least(1),
          row("expert", &c.expert,
              "data-parallel ranks that share the experts: edp x expert = data x context; no "
              "further "
              "factor of the world size")
              .unit("ranks")
              .at_least(1),
          row("context", &c.context, "ranks that split the sequence in attention")
              .unit("ranks")
              .at_least(1),
          row("data", &c.data,
              "data-parallel ranks; auto: world size / (tensor x pipeline x context)")
              .unit("ranks")
              .at_least(1),
          row("sequence_parallel", &c.sequence_parallel,
              "split the sequence over tensor ranks between attention and feed-forward; auto: if "
              "tensor > 1 and it divides"),
          row("tp_extend_ep", &c.tp_extend_ep,
              "whole experts over expert x tensor ranks instead of splitting each over tensor; "
              "auto: "
              "with sequence_parallel when it divides the experts"),
          row("zero", &c.zero,
              "what data-parallel ranks split: 0 nothing, 1 optimizer state, 3 weights too")
              .one_of({"0", "1", "3"}),
          row("ranks_per_node", &c.ranks_per_node, "ranks that share fast links; auto: as launched")
              .unit("ranks")
              .at_least(1),
          row("dispatch", choice(&c.dispatch, kDispatchNames),
              "how token rows reach experts: a row per expert (alltoall), per destination rank "
              "(alltoall_once), gathered between nodes (allgather), "
              "once per destination node (dedup)"),
          row("schedule", choice(&c.schedule, kPipelineScheduleNames),
              "order of micro-batches; fused_1f1b and dualpipev play the forward pass of one "
              "beside "
              "the backward pass of another (fused_1f1b also without a pipeline), which hides "
              "token dispatch and keeps more activations"),
          row("virtual_stages", &c.virtual_stages, "layer chunks per pipeline rank (interleaving)")
              .at_least(1),
          row("stage_layout", &c.stage_layout,
              "decoder layers per chunk in order, pipeline x virtual_stages numbers (dualpipev: 2 "
              "x pipeline); the last chunk, which has the head and MTP, may have none; auto: "
              "balanced "
              "by matrix products")
              .unit("layers")
              .at_least(0),
          row("overlap", &c.overlap,
              "run transfers beside computation: token dispatch, tensor parallel, gradient "
              "reduction, "
              "messages between stages; results stay the same bits"),
          row("weight_gradient_store", &c.weight_gradient_store,
              "most that weight gradients put off to fill waiting times may keep alive, per rank")
              .unit("bytes")
              .at_least(0)
              .at_most(1e15),
          row("mesh", &c.mesh,
              "your own axes, major first: {NAME: SIZE}; their product is data x context x tensor")
              .unit("ranks")
              .at_least(1),
          row("shard", &c.shard,
              "layouts of single operators: {op: PATTERN, LETTER: AXES}, {op: PATTERN, in: [...], "
              "out: "
              "[...]}, {param: PATTERN, layout: [...]}"),
          row("layouts", choice(&c.layouts, kLayoutChoiceNames),
              "who chooses what no strategy fixes: manual (propagation) or auto (search)"),
      },
      kMostRanks);
}

}  // namespace moetrain
