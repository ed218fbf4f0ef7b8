// Parallel fusion: independent small ops side by side in one launch.
#include "compile/fuse/side_by_side.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "compile/fuse/rebuild.h"
#include "ops/basic.h"
#include "ops/local.h"
#include "ops/pipe.h"
#include "ops/rows.h"
#include "ops/settle.h"
#include "ops/side_by_side.h"
#include "ops/update.h"

namespace moetrain {

namespace {

/// An op that moves more is worth all cores: what the launch costs besides (some microseconds) no longer
/// counts, and running it next to others only spoils their caches.
constexpr double kMostBytes = 4 << 20;
constexpr size_t kMostParts = 16;
/// How far back an op looks for others to join.
constexpr int kWindow = 64;

class SideBySidePass {
 public:
  SideBySidePass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), report_(report), group_of_(local.graph.nodes.size(), -1) {}

  LocalGraph run() {
    const int n = static_cast<int>(old_.nodes.size());
    for (int i = 0; i < n; ++i) note(i);
    for (int i = 0; i < n; ++i) {
      if (is_small(i)) find_group(i);
    }
    for (int i = 0; i < n; ++i) {
      if (group_of_[i] < 0 || groups_[group_of_[i]].size() < 2) rebuild_.copy(i);
      else if (groups_[group_of_[i]].front() == i) make(groups_[group_of_[i]]);
    }
    return rebuild_.finish();
  }

 private:
  /// The value whose memory `v` is.
  Value root(Value v) const {
    for (;;) {
      const Node& node = old_.node(v);
      const int shares = node.op->alias ? node.op->alias(node.attrs, v.output) : -1;
      if (shares < 0) return v;
      v = node.inputs[static_cast<size_t>(shares)];
    }
  }


  /// What node i touches in memory, and what of it it overwrites.
  void note(int i) {
    const Node& node = old_.nodes[i];
    std::set<Value> touched, written;
    for (Value v : node.inputs) touched.insert(root(v));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Value v{i, static_cast<int>(k)}, at = root(v);
      touched.insert(at);
      if (at != v && !ops::only_renames(node)) written.insert(at);
    }
    touched_.push_back(std::move(touched));
    written_.push_back(std::move(written));
    int last = is_moved(node) ? i : -1;
    if (!is_moved(node)) {
      for (Value v : node.inputs) last = std::max(last, transfer_[v.node]);
    }
    transfer_.push_back(last);
  }

  static bool is_moved(const Node& node) {
    return ops::is_collective(*node.op) || ops::is_transfer(*node.op) || node.op == &ops::kBind;
  }

  bool is_small(int i) const {
    const Node& node = old_.nodes[i];
    // Sums that may find their state not cleared yet are the executor's business (ZeroStates).
    static constexpr std::array<const OpDef*, 3> kApart = {&ops::kAccumulate, &ops::kClear, &ops::kSideBySide};
    if (node.inputs.empty() || node.outputs.empty() || is_moved(node) || ops::only_renames(node) || !node.op->reference ||
        !node.op->cost || node.attrs.integer_or("accumulate", 0) != 0 ||
        std::find(kApart.begin(), kApart.end(), node.op) != kApart.end())
      return false;
    std::vector<Type> in;
    for (Value v : node.inputs) in.push_back(old_.type(v));
    const auto ragged = [](const Type& t) { return t.ragged; };
    if (std::any_of(in.begin(), in.end(), ragged) ||
        std::any_of(node.outputs.begin(), node.outputs.end(), ragged))
      return false;
    const Cost cost = node.op->cost(node.attrs, in, node.outputs);
    return cost.bytes <= kMostBytes && cost.matmul_flops == 0;  // products want room to pack, per thread
  }

  /// Of one layer as well, but in the update, where layers do not wait for one another.
  bool together(int a, int b) const {
    return same_phase(old_, a, b) && (old_.nodes[a].tag.phase == Phase::kUpdate ||
                                      old_.nodes[a].tag.layer == old_.nodes[b].tag.layer);
  }

  /// Whether `v` stands before node `first`, or can: what only renames a value is made when it is asked for.
  bool stands_before(Value v, int first) const {
    const Node& node = old_.node(v);
    return v.node < first || node.inputs.empty() || (ops::only_renames(node) && stands_before(node.inputs[0], first));
  }
  Value made_before(Value v) {
    const Node& node = old_.node(v);
    if (ops::only_renames(node)) {
      made_before(node.inputs[0]);
      rebuild_.copy(v.node);
    }
    return rebuild_.value(v);
  }

  /// Whether node i may be made at the place of `first` although everything between came before it.
  bool may_move(int i, int first) const {
    for (Value v : old_.nodes[i].inputs) {
      if (!stands_before(v, first)) return false;
    }
    for (int between = first; between < i; ++between) {
      if (between > first && is_moved(old_.nodes[between])) return false;
      for (Value at : written_[i]) {
        if (touched_[between].count(at)) return false;
      }
      for (Value at : written_[between]) {
        if (touched_[i].count(at)) return false;
      }
    }
    return true;
  }

  void find_group(int i) {
    // The earliest place: it leaves the most to be joined by what needs this one.
    for (size_t g = oldest_; g < groups_.size(); ++g) {
      std::vector<int>& group = groups_[g];
      if (i - group.front() > kWindow) {
        if (g == oldest_) ++oldest_;
        continue;
      }
      // Nor may one wait for a transfer that only another one needs.
      if (group.size() < kMostParts && transfer_[group.front()] == transfer_[i] &&
          together(group.front(), i) &&
          may_move(i, group.front())) {
        group.push_back(i);
        group_of_[i] = static_cast<int>(g);
        return;
      }
    }
    group_of_[i] = static_cast<int>(groups_.size());
    groups_.push_back({i});
  }

  void make(const std::vector<int>& group) {
    std::vector<BodyPart> parts;
    std::vector<Value> inputs;
    std::vector<std::string> names;
    for (int n : group) {
      const Node& node = old_.nodes[n];
      parts.push_back({node.op, node.attrs, node.name, static_cast<int>(node.inputs.size()),
                       static_cast<int>(node.outputs.size())});
      for (Value v : node.inputs) inputs.push_back(made_before(v));
      names.push_back(node.name);
    }
    Attrs attrs;
    attrs.set("body", std::make_shared<const std::vector<BodyPart>>(std::move(parts)));
    std::string name = names.size() > 3 ? cat(names[0], " | ", names.size() - 1, " more") : join(names, " | ");
    const int made = rebuild_.append(ops::kSideBySide, std::move(inputs), std::move(attrs), group.front(), name);
    int output = 0;
    for (int n : group) {
      for (size_t k = 0; k < old_.nodes[n].outputs.size(); ++k)
        rebuild_.map({n, static_cast<int>(k)}, {made, output++});
    }
    report_.nodes += static_cast<int>(group.size()) - 1;
  }

  Rebuild rebuild_;
  const Graph& old_;
  FusionReport& report_;
  std::vector<std::set<Value>> touched_, written_;  // by node: roots
  std::vector<int> transfer_;  // by node: the last collective or message it waits for, or -1
  std::vector<std::vector<int>> groups_;
  std::vector<int> group_of_;
  size_t oldest_ = 0;  // groups before it are out of reach
};

}  // namespace

LocalGraph fuse_side_by_side(const LocalGraph& local, FusionReport& report) {
  return SideBySidePass(local, report).run();
}

}  // namespace moetrain
