// Local expansion of the few ops whose `local` factors are split: which op goes where, and the
// vocabulary loss.
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

// Vocabulary-parallel loss: every rank makes the statistics of its
// columns, the statistics are gathered, and every rank finishes loss and gradients with the sums
// over all columns.
void Partitioner::localize_vocab_loss(int index) {
  const Node& node = graph_.nodes[index];
  const std::vector<Axis> axes = axes_of(index, 'v');
  const Value x = operand(index, 0), w = operand(index, 1), labels = operand(index, 2),
              valid = operand(index, 3), scale = operand(index, 4);
  Attrs attrs = node.attrs;
  attrs.set("vocab_begin", out_.graph.type(w).shape[0] * mesh_.index_along(rank_, axes));
  const Value mine =
      add(ops::kVocabStatistics, {x, w, labels}, attrs, index, node.name + ".statistics");
  const Value all =
      add(ops::kAllGather, {mine}, over(axes), index, node.name + ".statistics.gather");
  const int done =
      append(ops::kVocabLossFinish, {x, w, labels, valid, scale, all}, attrs, index, node.name);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    define({index, static_cast<int>(k)}, {done, static_cast<int>(k)});
  }
}

}  // namespace moetrain
