// Local expansion of the few ops whose `local` factors are split: token transport and the vocabulary loss.
#include <algorithm>

#include "base/error.h"
#include "compile/partitioner.h"
#include "ops/experts.h"
#include "ops/vocab_loss.h"
#include "ops/vocab_parallel.h"

namespace moetrain {

std::vector<Axis> Partitioner::axes_of(int node, char factor) const {
  const auto& axes = sharding_.nodes[node].factors.axes;
  const auto at = axes.find(factor);
  return at == axes.end() ? std::vector<Axis>{} : at->second;
}

bool Partitioner::localize(int index) {
  const OpDef* op = graph_.nodes[index].op;
  if (op == &ops::kDispatch) return localize_dispatch(index), true;
  if (op == &ops::kDispatchGrad) return localize_dispatch_grad(index), true;
  if (op == &ops::kCombine) return localize_combine(index), true;
  if (op == &ops::kCombineGrad) return localize_combine_grad(index), true;
  if (op == &ops::kVocabLoss && mesh_.size(axes_of(index, 'v')) > 1) {
    return localize_vocab_loss(index), true;
  }
  return false;
}

// Vocabulary-parallel loss (shard-and-dispatch.md 10.2): every rank makes the statistics of its columns,
// the statistics are gathered, and every rank finishes loss and gradients with the sums over all columns.
void Partitioner::localize_vocab_loss(int index) {
  const Node& node = graph_.nodes[index];
  const std::vector<Axis> axes = axes_of(index, 'v');
  const Value x = operand(index, 0), w = operand(index, 1), labels = operand(index, 2),
              valid = operand(index, 3), scale = operand(index, 4);
  Attrs attrs = node.attrs;
  attrs.set("vocab_begin",
            out_.graph.type(w).shape[0] * mesh_.index_along(rank_, axes));
  const Value mine =
      add(ops::kVocabStatistics, {x, w, labels}, attrs, index, node.name + ".statistics");
  const Value all =
      add(ops::kAllGather, {mine}, over(axes), index, node.name + ".statistics.gather");
  const int done = append(ops::kVocabLossFinish, {x, w, labels, valid, scale, all}, attrs, index,
                          node.name);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    define({index, static_cast<int>(k)}, {done, static_cast<int>(k)});
  }
}

// Transport `alltoall`: rows are sorted by destination rank and expert, counts travel first, rows follow,
// and the receiver brings them into expert-major order.
void Partitioner::localize_dispatch(int index) {
  const Node& node = graph_.nodes[index];
  const Value x = operand(index, 0), idx = operand(index, 1);
  const int64_t experts = node.attrs.integer("experts");
  const std::vector<Axis> expert_axes = axes_of(index, 'e');
  std::vector<Axis> token_axes = axes_of(index, 'b');
  const std::vector<Axis> sequence_axes = axes_of(index, 's');
  token_axes.insert(token_axes.end(), sequence_axes.begin(), sequence_axes.end());

  DispatchBundle bundle;
  for (Axis a : expert_axes) {
    const bool splits_tokens =
        std::find(token_axes.begin(), token_axes.end(), a) != token_axes.end();
    if (splits_tokens) bundle.exchange_axes.push_back(a);
  }
  bundle.local_experts = experts / mesh_.size(expert_axes);
  const std::vector<int> group = mesh_.group(rank_, bundle.exchange_axes);
  bundle.members = static_cast<int64_t>(group.size());
  std::vector<int64_t> first;
  for (int member : group) {
    first.push_back(bundle.local_experts * mesh_.index_along(member, expert_axes));
  }
  const int64_t slots = numel(out_.graph.type(idx).shape);
  const int64_t selections = mesh_.size(expert_axes) / bundle.members;
  bundle.send_capacity = slots;
  bundle.recv_capacity = slots * bundle.members;
  const int64_t balanced = std::max<int64_t>(1, slots / selections);

  const int count = append(ops::kDispatchCount, {idx},
                           {{"first_experts", first}, {"local_experts", bundle.local_experts}},
                           index, node.name + ".count");
  bundle.plan = {count, 0};
  bundle.counts = {count, 1};
  if (bundle.members > 1) {
    bundle.recv_counts = add(ops::kAllToAll, {bundle.counts}, over(bundle.exchange_axes), index,
                             node.name + ".counts");
    bundle.offsets =
        add(ops::kRowOffsets, {bundle.recv_counts}, {}, index, node.name + ".offsets");
    bundle.bind = add(ops::kBind, {bundle.counts, bundle.recv_counts},
                      {{"expected", std::vector<int64_t>{balanced, balanced}},
                       {"largest", std::vector<int64_t>{slots, bundle.recv_capacity}}},
                      index, node.name + ".bind");
  } else {
    bundle.recv_counts = bundle.counts;
    bundle.offsets = bundle.plan;
    bundle.bind = add(ops::kBind, {bundle.counts},
                      {{"expected", std::vector<int64_t>{balanced}},
                       {"largest", std::vector<int64_t>{slots}}},
                      index, node.name + ".bind");
  }
  bundles_[{index, 1}] = bundle;
  define({index, 1}, bundle.plan);
  const Value rows = add(ops::kGatherRows, {x, bundle.plan, bundle.bind},
                         {{"experts", bundle.members * bundle.local_experts},
                          {"which", int64_t{0}},
                          {"capacity", bundle.send_capacity}},
                         index, node.name + ".gather");
  define({index, 0}, to_experts(rows, bundle, index, node.name));
}

Value Partitioner::to_experts(Value rows, const DispatchBundle& bundle, int like,
                              const std::string& name) {
  if (bundle.members == 1) return rows;
  Attrs move = over(bundle.exchange_axes);
  move.set("send", int64_t{0}).set("recv", int64_t{1}).set("which", int64_t{1});
  move.set("experts", bundle.members * bundle.local_experts)
      .set("capacity", bundle.recv_capacity);
  const Value moved =
      add(ops::kRowsAllToAll, {rows, bundle.bind}, move, like, name + ".rows");
  return add(ops::kRegroupRows, {moved, bundle.recv_counts, bundle.bind},
             {{"inverse", int64_t{0}},
              {"which", int64_t{1}},
              {"experts", bundle.local_experts},
              {"capacity", bundle.recv_capacity}},
             like, name + ".regroup");
}

Value Partitioner::from_experts(Value rows, const DispatchBundle& bundle, int like,
                                const std::string& name) {
  if (bundle.members == 1) return rows;
  const int64_t experts = bundle.members * bundle.local_experts;
  const Value ungrouped = add(ops::kRegroupRows, {rows, bundle.recv_counts, bundle.bind},
                              {{"inverse", int64_t{1}},
                               {"which", int64_t{1}},
                               {"experts", experts},
                               {"capacity", bundle.recv_capacity}},
                              like, name + ".ungroup");
  Attrs move = over(bundle.exchange_axes);
  move.set("send", int64_t{1}).set("recv", int64_t{0}).set("which", int64_t{0});
  move.set("experts", experts).set("capacity", bundle.send_capacity);
  return add(ops::kRowsAllToAll, {ungrouped, bundle.bind}, move, like, name + ".rows");
}

void Partitioner::localize_dispatch_grad(int index) {
  const Node& node = graph_.nodes[index];
  const DispatchBundle& bundle = bundles_.at(node.inputs[1]);
  const Value rows = from_experts(operand(index, 0), bundle, index, node.name);
  Attrs attrs = node.attrs;
  attrs.set("experts", bundle.members * bundle.local_experts);
  define({index, 0}, add(ops::kDispatchGrad, {rows, bundle.plan, operand(index, 2)}, attrs, index,
                         node.name));
}

void Partitioner::localize_combine(int index) {
  const Node& node = graph_.nodes[index];
  const DispatchBundle& bundle = bundles_.at(node.inputs[1]);
  const Value rows = from_experts(operand(index, 0), bundle, index, node.name);
  returned_[node.inputs[0]] = rows;
  Attrs attrs = node.attrs;
  attrs.set("experts", bundle.members * bundle.local_experts);
  define({index, 0}, add(ops::kCombine, {rows, bundle.plan, operand(index, 2), operand(index, 3)},
                         attrs, index, node.name));
}

void Partitioner::localize_combine_grad(int index) {
  const Node& node = graph_.nodes[index];
  const DispatchBundle& bundle = bundles_.at(node.inputs[1]);
  Attrs attrs = node.attrs;
  attrs.set("experts", bundle.members * bundle.local_experts);
  const int grad = append(ops::kCombineGrad,
                          {operand(index, 0), bundle.plan, operand(index, 2), operand(index, 3),
                           returned_.at(node.inputs[4])},
                          attrs, index, node.name);
  define({index, 0}, to_experts({grad, 0}, bundle, index, node.name));
  define({index, 1}, {grad, 1});
}

}  // namespace moetrain
