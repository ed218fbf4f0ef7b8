// The two transfer routines behind dispatch, combine and their gradients, in both directions.
#include "compile/partitioner.h"
#include "ops/experts.h"

namespace moetrain {

using Outer = DispatchBundle::Outer;

Value Partitioner::to_columns(Value x, const DispatchBundle& bundle, int like,
                              const std::string& name) {
  if (bundle.outer == Outer::kNone) return x;
  if (bundle.outer == Outer::kGather) {
    const Value all = add(ops::kAllGather, {x}, bundle.outer_group, like, name + ".gather");
    return add(ops::kUnstack, {all}, {{"dim", int64_t{0}}, {"plain", int64_t{1}}}, like,
               name + ".gathered");
  }
  const Value rows = add(ops::kGatherRows, {x, bundle.out_plan, bundle.bind},
                         {{"experts", bundle.outer_members},
                          {"which", bundle.outer_sent},
                          {"capacity", bundle.out_capacity},
                          {"top_k", bundle.top_k}},
                         like, name + ".pack");
  Attrs move = bundle.outer_group;
  move.set("send", bundle.outer_sent)
      .set("recv", bundle.outer_received)
      .set("which", bundle.outer_received)
      .set("experts", int64_t{1})
      .set("capacity", bundle.column_capacity);
  return add(ops::kRowsAllToAll, {rows, bundle.bind}, move, like, name + ".out");
}

Value Partitioner::from_columns(Value y, const DispatchBundle& bundle, int like,
                                const std::string& name) {
  if (bundle.outer == Outer::kNone) return y;
  if (bundle.outer == Outer::kGather) {
    const Value parts =
        add(ops::kStack, {y},
            {{"dim", int64_t{0}}, {"parts", bundle.outer_members}, {"plain", int64_t{1}}}, like,
            name + ".parts");
    return add(ops::kReduceScatter, {parts}, bundle.outer_group, like, name + ".scatter");
  }
  Attrs move = bundle.outer_group;
  move.set("send", bundle.outer_received)
      .set("recv", bundle.outer_sent)
      .set("which", bundle.outer_sent)
      .set("experts", bundle.outer_members)
      .set("capacity", bundle.out_capacity);
  const Value rows = add(ops::kRowsAllToAll, {y, bundle.bind}, move, like, name + ".back");
  // Each token's rows, one per column that had it, are summed in the order of its slots.
  return add(ops::kDispatchGrad, {rows, bundle.out_plan, bundle.source_idx},
             {{"experts", bundle.outer_members}}, like, name + ".sum");
}

Value Partitioner::to_experts(Value rows, const DispatchBundle& bundle, int like,
                              const std::string& name) {
  if (bundle.inner_members == 1) return rows;
  Attrs move = bundle.inner_group;
  move.set("send", bundle.inner_sent)
      .set("recv", bundle.inner_received)
      .set("which", bundle.inner_received)
      .set("experts", bundle.inner_members * bundle.local_experts)
      .set("capacity", bundle.recv_capacity);
  const Value moved = add(ops::kRowsAllToAll, {rows, bundle.bind}, move, like, name + ".rows");
  return add(ops::kRegroupRows, {moved, bundle.received, bundle.bind},
             {{"inverse", int64_t{0}},
              {"which", bundle.inner_received},
              {"experts", bundle.local_experts},
              {"capacity", bundle.recv_capacity}},
             like, name + ".regroup");
}

Value Partitioner::from_experts(Value rows, const DispatchBundle& bundle, int like,
                                const std::string& name) {
  if (bundle.inner_members == 1) return rows;
  const int64_t experts = bundle.inner_members * bundle.local_experts;
  const Value ungrouped = add(ops::kRegroupRows, {rows, bundle.received, bundle.bind},
                              {{"inverse", int64_t{1}},
                               {"which", bundle.inner_received},
                               {"experts", experts},
                               {"capacity", bundle.recv_capacity}},
                              like, name + ".ungroup");
  Attrs move = bundle.inner_group;
  move.set("send", bundle.inner_received)
      .set("recv", bundle.inner_sent)
      .set("which", bundle.inner_sent)
      .set("experts", experts)
      .set("capacity", bundle.send_capacity);
  return add(ops::kRowsAllToAll, {ungrouped, bundle.bind}, move, like, name + ".rows");
}

}  // namespace moetrain
