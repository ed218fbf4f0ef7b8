// Several products of one input as one, and what differentiation made of them.
#include "compile/fuse/projections.h"

#include <algorithm>
#include <set>
#include <string>

#include "compile/fuse/rebuild.h"
#include "ops/basic.h"
#include "ops/common.h"
#include "ops/experts.h"
#include "ops/local.h"
#include "ops/matmul.h"
#include "ops/projections.h"
#include "ops/swiglu.h"

namespace moetrain {

namespace {

enum class Kind { kForward, kDx, kDw };

/// Nodes that become one, made at the place of node `place`.
struct Merge {
  Kind kind = Kind::kForward;
  std::vector<int> nodes;
  int place = -1;
  int sum = -1;               ///< kDx: the sum whose terms they are
  std::vector<Value> others;  ///< kDx: the other terms of the sum
};

class ProjectionsPass {
 public:
  ProjectionsPass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), readers_(reader_counts(local.graph)),
        users_(users_of(local.graph)), report_(report) {
    collectives_.push_back(0);
    for (const Node& node : old_.nodes) {
      const bool collective = ops::is_collective(*node.op);
      collectives_.push_back(collectives_.back() + (collective ? 1 : 0));
      if (collective && node.tag.phase == Phase::kBackward) backward_transfers_.insert(node.tag.stage);
    }
  }

  LocalGraph run() {
    find_products_of_one_input();
    for (size_t i = old_.nodes.size(); i-- > 0;) find_sum(static_cast<int>(i));
    for (int i = 0; i < static_cast<int>(old_.nodes.size()); ++i) {
      if (const auto at = made_at_.find(i); at != made_at_.end()) {
        for (const Merge& merge : at->second) make(merge);
      }
      if (const auto at = sums_.find(i); at != sums_.end()) make_sum(at->second);
      if (!gone_.count(i)) rebuild_.copy(i);
    }
    return rebuild_.finish();
  }

 private:
  static bool grouped(const Node& node) {
    return node.op == &ops::kGroupedMatmul || node.op == &ops::kGroupedMatmulDx ||
           node.op == &ops::kGroupedMatmulDw;
  }
  static bool is_dx(const Node& node) {
    return node.op == &ops::kMatmulDx || node.op == &ops::kGroupedMatmulDx;
  }
  static bool accumulates(const Node& node) { return node.attrs.integer_or("accumulate", 0) != 0; }
  /// A plan that all products of a group share, or none.
  static Value plan_of(const Node& node) { return grouped(node) ? node.inputs[2] : Value{}; }

  bool together(const Node& a, const Node& b) const {
    return a.tag == b.tag && a.op == b.op && a.outputs[0].dtype == b.outputs[0].dtype &&
           plan_of(a) == plan_of(b) && old_.type(a.inputs[1]).dtype == old_.type(b.inputs[1]).dtype &&
           old_.type(a.inputs[0]).dtype == old_.type(b.inputs[0]).dtype &&
           accumulates(a) == accumulates(b);
  }
  bool collective_between(int a, int b) const { return collectives_[b] > collectives_[a + 1]; }
  bool there_before(Value v, int node) const {
    return v.node < node || old_.nodes[v.node].inputs.empty();
  }
  /// The activation that this product and another one feed, or -1: only those two belong together.
  int activation_of(int node) const {
    for (int user : users_[node]) {
      if (old_.nodes[user].op == &ops::kSwiglu) return user;
    }
    return -1;
  }
  int64_t bytes(Value v) const { return expected_bytes(old_, v); }

  void find_products_of_one_input() {
    std::map<Value, std::vector<int>> by_input;  // in node order
    for (size_t i = 0; i < old_.nodes.size(); ++i) {
      const Node& node = old_.nodes[i];
      if (node.op == &ops::kMatmul || node.op == &ops::kGroupedMatmul)
        by_input[node.inputs[0]].push_back(static_cast<int>(i));
      else if (node.op == &ops::kMatmulDw || node.op == &ops::kGroupedMatmulDw)
        by_input[node.inputs[1]].push_back(static_cast<int>(i));
    }
    for (const auto& [x, nodes] : by_input) {
      std::set<int> taken;
      for (size_t a = 0; a < nodes.size(); ++a) {
        if (taken.count(nodes[a])) continue;
        std::vector<int> group{nodes[a]};
        for (size_t b = a + 1; b < nodes.size(); ++b) {
          if (!taken.count(nodes[b]) && joins(group, nodes[b])) group.push_back(nodes[b]);
        }
        if (group.size() < 2) continue;
        taken.insert(group.begin(), group.end());
        add_products(group, x);
      }
    }
  }

  bool joins(const std::vector<int>& group, int other) const {
    const Node &first = old_.nodes[group[0]], &node = old_.nodes[other];
    if (!together(first, node) || collective_between(group[0], other)) return false;
    if (first.op == &ops::kMatmul || first.op == &ops::kGroupedMatmul) {
      return activation_of(group[0]) == activation_of(other) && there_before(node.inputs[1], group[0]);
    }
    // Weight gradients fill the time of transfers of their pass: the smaller, the better they fit.
    if (backward_transfers_.count(node.tag.stage)) return false;
    // They are made at the last one's place, so nobody may read one before.
    for (int earlier : group) {
      for (int user : users_[earlier]) {
        if (user <= other) return false;
      }
    }
    return true;
  }

  void add_products(const std::vector<int>& group, Value x) {
    const bool forward = old_.nodes[group[0]].op == &ops::kMatmul ||
                         old_.nodes[group[0]].op == &ops::kGroupedMatmul;
    Merge merge;
    merge.kind = forward ? Kind::kForward : Kind::kDw;
    merge.nodes = group;
    merge.place = forward ? group.front() : group.back();
    take(merge);
    report_.bytes_saved += static_cast<int64_t>(group.size() - 1) * bytes(x);
  }

  void take(const Merge& merge) {
    gone_.insert(merge.nodes.begin(), merge.nodes.end());
    report_.nodes += static_cast<int>(merge.nodes.size()) - 1;
    made_at_[merge.place].push_back(merge);
  }

  /// The terms of sum `sum`, with sums that nobody else reads flattened into it.
  void flatten(int sum, std::vector<Value>& terms, std::vector<int>& inner) const {
    for (Value v : old_.nodes[sum].inputs) {
      const Node& node = old_.node(v);
      const bool opens = node.op == &ops::kAdd && readers_.at(v) == 1 &&
                         node.tag == old_.nodes[sum].tag && !gone_.count(v.node) &&
                         node.outputs[0] == old_.nodes[sum].outputs[0];
      if (!opens) {
        terms.push_back(v);
        continue;
      }
      inner.push_back(v.node);
      flatten(v.node, terms, inner);
    }
  }

  void find_sum(int index) {
    const Node& sum = old_.nodes[index];
    if (sum.op != &ops::kAdd || gone_.count(index)) return;
    std::vector<Value> terms;
    std::vector<int> inner;
    flatten(index, terms, inner);
    Merge merge;
    merge.kind = Kind::kDx;
    merge.sum = index;
    for (Value v : terms) {
      const Node& node = old_.node(v);
      const bool first = merge.nodes.empty();
      if (is_dx(node) && readers_.at(v) == 1 && !gone_.count(v.node) && node.tag == sum.tag &&
          node.outputs[0] == sum.outputs[0] &&
          (first || (together(old_.nodes[merge.nodes[0]], node) &&
                     !collective_between(std::min(merge.nodes[0], v.node),
                                         std::max(merge.nodes[0], v.node))))) {
        merge.nodes.push_back(v.node);
      } else {
        merge.others.push_back(v);
      }
    }
    if (merge.nodes.size() < 2) return;
    merge.place = *std::max_element(merge.nodes.begin(), merge.nodes.end());
    take(merge);
    gone_.insert(index);
    gone_.insert(inner.begin(), inner.end());
    report_.nodes += static_cast<int>(merge.nodes.size()) - 1;  // sums fewer
    // Written by its product, read, and the sum of both written and read.
    report_.bytes_saved += static_cast<int64_t>(merge.nodes.size() - 1) * 4 * bytes({index, 0});
    sums_[index] = merge;
  }

  static std::string joint_name(const Graph& graph, const std::vector<int>& nodes) {
    std::string name = graph.nodes[nodes[0]].name;
    const size_t prefix = name.rfind('.', name.ends_with(".dx") || name.ends_with(".dw") ? name.size() - 4
                                                                                        : std::string::npos);
    for (size_t k = 1; k < nodes.size(); ++k) {
      const std::string& other = graph.nodes[nodes[k]].name;
      const bool shared = prefix != std::string::npos && other.compare(0, prefix + 1, name, 0, prefix + 1) == 0;
      name += '+';
      name += shared ? other.substr(prefix + 1) : other;
    }
    return name;
  }

  void make(const Merge& merge) {
    const Node& first = old_.nodes[merge.nodes[0]];
    Attrs attrs;
    attrs.set("count", static_cast<int64_t>(merge.nodes.size()));
    if (grouped(first)) attrs.set("grouped", int64_t{1});
    std::vector<Value> inputs;
    auto add_all = [&](size_t operand) {
      for (int n : merge.nodes) inputs.push_back(rebuild_.value(old_.nodes[n].inputs[operand]));
    };
    const OpDef* op = &ops::kProjections;
    if (merge.kind == Kind::kForward) {
      inputs.push_back(rebuild_.value(first.inputs[0]));
      add_all(1);
    } else if (merge.kind == Kind::kDx) {
      op = &ops::kProjectionsDx;
      add_all(0);
      add_all(1);
    } else {
      op = &ops::kProjectionsDw;
      add_all(0);
      inputs.push_back(rebuild_.value(first.inputs[1]));
    }
    if (grouped(first)) inputs.push_back(rebuild_.value(first.inputs[2]));
    if (merge.kind == Kind::kDw && accumulates(first)) {
      attrs.set("accumulate", int64_t{1});
      add_all(grouped(first) ? 3 : 2);
    }
    if (merge.kind != Kind::kDw) attrs.set("dtype", ops::dtype_value(first.outputs[0].dtype));
    const int made = rebuild_.append(*op, std::move(inputs), std::move(attrs), merge.place,
                                     joint_name(old_, merge.nodes));
    if (merge.kind == Kind::kDx) {
      products_[merge.sum] = {made, 0};
      return;
    }
    for (size_t k = 0; k < merge.nodes.size(); ++k) {
      rebuild_.map({merge.nodes[k], 0}, {made, static_cast<int>(k)});
    }
  }

  void make_sum(const Merge& merge) {
    Value sum = products_.at(merge.sum);
    for (Value v : merge.others) {
      sum = {rebuild_.append(ops::kAdd, {rebuild_.value(v), sum}, {}, merge.sum), 0};
    }
    rebuild_.map({merge.sum, 0}, sum);
  }

  Rebuild rebuild_;
  const Graph& old_;
  const std::map<Value, int> readers_;
  const std::vector<std::vector<int>> users_;
  FusionReport& report_;
  std::vector<int> collectives_;      // before each node
  std::set<int> backward_transfers_;  // stages whose backward pass has collectives
  std::map<int, std::vector<Merge>> made_at_;
  std::map<int, Merge> sums_;
  std::map<int, Value> products_;  // by sum
  std::set<int> gone_;
};

}  // namespace

LocalGraph fuse_projections(const LocalGraph& local, FusionReport& report) {
  return ProjectionsPass(local, report).run();
}

}  // namespace moetrain
