// Gradient accumulation moves into the products that make the gradients.
#include "compile/fuse/accumulate.h"

#include <set>

#include "compile/fuse/rebuild.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/update.h"

namespace moetrain {

namespace {

/// Ops that take an accumulator as an optional last operand.
bool adds_in_place(const Node& node) {
  if (node.op == &ops::kMatmulDw || node.op == &ops::kEmbeddingGrad) return node.inputs.size() == 2;
  return node.op == &ops::kGroupedMatmulDw && node.inputs.size() == 3;
}

class AccumulatePass {
 public:
  explicit AccumulatePass(const LocalGraph& local)
      : rebuild_(local), old_(local.graph), readers_(reader_counts(local.graph)) {}

  LocalGraph run() {
    for (size_t i = 0; i < old_.nodes.size(); ++i) {
      const Node& node = old_.nodes[i];
      if (node.op == &ops::kAccumulate) flatten(static_cast<int>(i), node.inputs[1]);
    }
    for (size_t i = 0; i < old_.nodes.size(); ++i) visit(static_cast<int>(i));
    return rebuild_.finish();
  }

 private:
  /// Notes every addend of accumulate node `sum` at its producer.
  void flatten(int sum, Value x) {
    const Node& node = old_.node(x);
    if (node.op == &ops::kAdd && readers_.at(x) == 1 && node.tag.phase == Phase::kBackward) {
      dissolved_.insert(x.node);
      flatten(sum, node.inputs[0]);
      flatten(sum, node.inputs[1]);
      return;
    }
    addends_[x.node].push_back({sum, x});
  }

  Value accumulator(int sum) {
    auto at = current_.find(sum);
    return at != current_.end() ? at->second : rebuild_.value(old_.nodes[sum].inputs[0]);
  }

  void visit(int index) {
    const Node& node = old_.nodes[index];
    if (dissolved_.count(index)) return;
    if (node.op == &ops::kAccumulate) {
      rebuild_.map({index, 0}, current_.at(index));
      return;
    }
    const auto at = addends_.find(index);
    const bool in_place = at != addends_.end() && at->second.size() == 1 && adds_in_place(node) &&
                          readers_.at({index, 0}) == 1;
    if (in_place) {
      const int sum = at->second[0].sum;
      std::vector<Value> inputs = rebuild_.values(node.inputs);
      inputs.push_back(accumulator(sum));
      Attrs attrs = node.attrs;
      attrs.set("accumulate", int64_t{1});
      const int made = rebuild_.append(*node.op, std::move(inputs), std::move(attrs), index);
      current_[sum] = {made, 0};
      return;
    }
    rebuild_.copy(index);
    if (at == addends_.end()) return;
    for (const Addend& a : at->second) {
      const int made =
          rebuild_.append(ops::kAccumulate, {accumulator(a.sum), rebuild_.value(a.value)}, {},
                          index, old_.nodes[a.sum].name);
      current_[a.sum] = {made, 0};
    }
  }

  struct Addend {
    int sum;
    Value value;
  };

  Rebuild rebuild_;
  const Graph& old_;
  const std::map<Value, int> readers_;
  std::map<int, std::vector<Addend>> addends_;  // producer -> sums it feeds
  std::set<int> dissolved_;
  std::map<int, Value> current_;  // accumulate node -> accumulator so far
};

}  // namespace

LocalGraph fuse_accumulate(const LocalGraph& local) { return AccumulatePass(local).run(); }

}  // namespace moetrain
