// Dijkstra over layouts: every axis that must move sits on a dim, in a pending set, or nowhere.
#include "compile/shard/reshard.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "compile/shard/direct.h"

namespace moetrain {
namespace {

using Kind = ReshardStep::Kind;

constexpr int kMaxActive = 8;         // axes that one search may move
constexpr int kMaxDirectRanks = 32;   // larger groups do without direct exchanges
constexpr int kCopies = 0, kPending = 1, kPendingMax = 2, kFirstDim = 3;

/// Where every active axis is: eight bits each, place below, order within its dim above.
struct State {
  uint64_t bits = 0;
  int place(int k) const { return static_cast<int>(bits >> (8 * k) & 31); }
  int order(int k) const { return static_cast<int>(bits >> (8 * k + 5) & 7); }
  void put(int k, int place, int order) {
    bits &= ~(uint64_t{255} << (8 * k));
    bits |= static_cast<uint64_t>(place | order << 5) << (8 * k);
  }
  bool operator==(const State&) const = default;
};

struct Move {
  Kind kind;
  std::vector<int> axes;  // active numbers, major first
  int dim = -1, to_dim = -1;
};

/// The common part of source and target that stays, and the rest as a small problem of its own.
class PlanSearch {
 public:
  PlanSearch(const Mesh& mesh, const LinkModel& links, const Shape& shape, DType dtype,
         const Layout& from, const Layout& to,
         std::map<std::vector<Axis>, GroupShape>& groups)
      : mesh_(mesh), links_(links), shape_(shape), element_(size_of(dtype)), groups_(groups) {
    kept_.dims.resize(shape.size());
    Layout a = from, b = to;
    for (size_t d = 0; d < shape_.size(); ++d) {
      auto& x = a.dims[d];
      auto& y = b.dims[d];
      size_t same = 0;
      while (same < x.size() && same < y.size() && x[same] == y[same]) ++same;
      kept_.dims[d].assign(x.begin(), x.begin() + same);
      x.erase(x.begin(), x.begin() + same);
      y.erase(y.begin(), y.begin() + same);
      shape_[d] /= mesh.size(kept_.dims[d]);
    }
    keep_common(a.partial, b.partial, kept_.partial);
    keep_common(a.partial_max, b.partial_max, kept_.partial_max);
    for (const Layout* layout : {&a, &b}) {
      for (const auto& axes : layout->dims) activate(axes);
      activate(layout->partial);
      activate(layout->partial_max);
    }
    std::sort(active_.begin(), active_.end());
    MT_CHECK(active_.size() <= kMaxActive, "redistribution moves ", active_.size(), " axes");
    source_ = encode(a);
    target_ = encode(b);
    local_bytes_ = numel(shape_) * static_cast<int64_t>(element_);
  }

  /// False when no way stays under the limit.
  bool run(double memory_factor) {
    limit_ = memory_factor *
             static_cast<double>(std::max(bytes_of(source_), bytes_of(target_)));
    nodes_.clear();
    index_.clear();
    reach(source_, 0, -1, {});
    using Entry = std::tuple<double, int>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    queue_ = &queue;
    queue.emplace(0, 0);
    while (!queue.empty()) {
      const auto [seconds, n] = queue.top();
      queue.pop();
      if (n < 0) {
        try_direct(-1 - n);
        continue;
      }
      if (nodes_[n].done) continue;
      nodes_[n].done = true;
      if (nodes_[n].state == target_) return true;
      expand(n);
    }
    return false;
  }

  ReshardPlan plan() const {
    std::vector<int> path;
    for (int n = index_.at(target_.bits); n >= 0; n = nodes_[n].parent) path.push_back(n);
    std::reverse(path.begin(), path.end());
    ReshardPlan plan;
    for (size_t i = 1; i < path.size(); ++i) {
      const Move& move = nodes_[path[i]].move;
      ReshardStep step;
      step.kind = move.kind;
      for (int k : move.axes) step.axes.push_back(active_[k]);
      step.dim = move.dim;
      step.to_dim = move.to_dim;
      step.before = decode(nodes_[path[i - 1]].state);
      step.after = decode(nodes_[path[i]].state);
      const CollectiveCost cost = price(nodes_[path[i - 1]].state, nodes_[path[i]].state, move);
      step.seconds = cost.seconds;
      step.bytes = cost.bytes;
      plan.steps.push_back(std::move(step));
    }
    merge_neighbours(plan);
    for (const ReshardStep& step : plan.steps) {
      plan.seconds += step.seconds;
      plan.bytes += step.bytes;
    }
    return plan;
  }

 private:
  struct Node {
    State state;
    double seconds;
    int parent;
    Move move;
    bool done = false;
  };

  static void keep_common(std::vector<Axis>& a, std::vector<Axis>& b, std::vector<Axis>& kept) {
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(kept));
    auto common = [&](Axis x) { return std::binary_search(kept.begin(), kept.end(), x); };
    std::erase_if(a, common);
    std::erase_if(b, common);
  }
  void activate(const std::vector<Axis>& axes) {
    for (Axis a : axes) {
      if (std::find(active_.begin(), active_.end(), a) == active_.end()) active_.push_back(a);
    }
  }
  int number(Axis a) const {
    return static_cast<int>(std::lower_bound(active_.begin(), active_.end(), a) - active_.begin());
  }
  int size(int k) const { return mesh_.atoms[active_[k]].size; }

  State encode(const Layout& layout) const {
    State state;
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      for (size_t i = 0; i < layout.dims[d].size(); ++i) {
        state.put(number(layout.dims[d][i]), kFirstDim + static_cast<int>(d), static_cast<int>(i));
      }
    }
    for (Axis a : layout.partial) state.put(number(a), kPending, 0);
    for (Axis a : layout.partial_max) state.put(number(a), kPendingMax, 0);
    return state;
  }
  /// The active axes of a dim, major first.
  std::vector<int> on_dim(State state, int d) const {
    std::vector<int> list;
    for (int order = 0;; ++order) {
      bool found = false;
      for (int k = 0; k < static_cast<int>(active_.size()) && !found; ++k) {
        found = state.place(k) == kFirstDim + d && state.order(k) == order;
        if (found) list.push_back(k);
      }
      if (!found) return list;
    }
  }
  Layout decode(State state, bool with_kept = true) const {
    Layout layout = with_kept ? kept_ : replicated(shape_.size());
    for (size_t d = 0; d < shape_.size(); ++d) {
      for (int k : on_dim(state, static_cast<int>(d))) layout.dims[d].push_back(active_[k]);
    }
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      if (state.place(k) == kPending) layout.partial.push_back(active_[k]);
      if (state.place(k) == kPendingMax) layout.partial_max.push_back(active_[k]);
    }
    return normalise(mesh_, std::move(layout));
  }
  int64_t parts_on(State state, int d) const {
    int64_t parts = 1;
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      if (state.place(k) == kFirstDim + d) parts *= size(k);
    }
    return parts;
  }
  int64_t bytes_of(State state) const {
    int64_t bytes = local_bytes_;
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      if (state.place(k) >= kFirstDim) bytes /= size(k);
    }
    return bytes;
  }
  bool has_pending(State state) const {
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      if (state.place(k) == kPending || state.place(k) == kPendingMax) return true;
    }
    return false;
  }

  CollectiveCost price(State before, State after, const Move& move) const {
    if (move.kind == Kind::kDirect) {
      const Layout a = decode(before, false), b = decode(after, false);
      return DirectExchange(mesh_, links_.ranks_per_node, shape_, a, b)
          .cost(links_, static_cast<int64_t>(element_));
    }
    std::vector<Axis> axes;
    for (int k : move.axes) axes.push_back(active_[k]);
    return collective_cost(links_, move.kind, group(axes), bytes_of(before));
  }
  const GroupShape& group(const std::vector<Axis>& axes) const {
    auto at = groups_.find(axes);
    if (at == groups_.end()) {
      at = groups_.emplace(axes, group_shape(mesh_, links_, axes)).first;
    }
    return at->second;
  }

  void reach(State state, double seconds, int parent, Move move) {
    const auto [at, fresh] = index_.emplace(state.bits, static_cast<int>(nodes_.size()));
    if (fresh) {
      nodes_.push_back({state, seconds, parent, std::move(move)});
    } else {
      Node& node = nodes_[at->second];
      if (node.done || seconds >= node.seconds * (1 - 1e-9)) return;
      node.seconds = seconds;
      node.parent = parent;
      node.move = std::move(move);
    }
    if (parent >= 0) queue_->emplace(seconds, at->second);
  }
  /// Breaks ties towards few and simple steps.
  static double trouble(const Move& move) {
    return 1e-9 * (1 + static_cast<double>(move.axes.size()));
  }
  void step(int from, State after, Move move) {
    if (static_cast<double>(bytes_of(after)) > limit_) return;
    const double seconds = price(nodes_[from].state, after, move).seconds + trouble(move);
    reach(after, nodes_[from].seconds + seconds, from, std::move(move));
  }

  /// Appends active axes to dim d if they divide it.
  bool append(State& state, int d, const std::vector<int>& axes) const {
    int64_t parts = parts_on(state, d);
    int order = static_cast<int>(on_dim(state, d).size());
    for (int k : axes) {
      parts *= size(k);
      state.put(k, kFirstDim + d, order++);
    }
    return shape_[d] % parts == 0;
  }
  void expand(int n) {
    const State state = nodes_[n].state;
    const int dims = static_cast<int>(shape_.size());
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      const int place = state.place(k);
      if (place == kCopies || place == kPending) {
        for (int d = 0; d < dims; ++d) {
          State after = state;
          const Kind kind = place == kCopies ? Kind::kSlice : Kind::kReduceScatter;
          if (append(after, d, {k})) step(n, after, {kind, {k}, d, -1});
        }
      }
      if (place == kPending || place == kPendingMax) {
        State after = state;
        after.put(k, kCopies, 0);
        step(n, after, {Kind::kAllReduce, {k}, -1, -1});
      }
      if (place == kCopies && target_.place(k) == kPending) {
        State after = state;
        after.put(k, kPending, 0);
        step(n, after, {Kind::kKeepOnFirst, {k}, -1, -1});
      }
    }
    for (int d = 0; d < dims; ++d) {
      const std::vector<int> list = on_dim(state, d);
      // The minor axis of a dim leaves first; several at once keep their order.
      for (size_t length = 1; length <= list.size(); ++length) {
        const std::vector<int> tail(list.end() - length, list.end());
        State gathered = state;
        for (int k : tail) gathered.put(k, kCopies, 0);
        step(n, gathered, {Kind::kAllGather, tail, d, -1});
        for (int e = 0; e < dims; ++e) {
          State moved = gathered;
          if (e != d && append(moved, e, tail)) step(n, moved, {Kind::kAllToAll, tail, d, e});
        }
      }
      scatter_run(n, d, list);
    }
    if (has_pending(state) || has_pending(target_)) return;
    const double bound = direct_bound(state);
    if (bound > 0) queue_->emplace(nodes_[n].seconds + bound, -1 - n);
  }
  /// A price no direct exchange from `state` can beat (0: none is worth looking at). The real price
  /// takes a look at every pair of ranks, so it is only asked for when this one comes up.
  double direct_bound(State state) const {
    double piece = 1, target = 1;
    int64_t ranks = 1;
    for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
      const double have = static_cast<double>(shape_[d] / parts_on(state, d));
      const double want = static_cast<double>(shape_[d] / parts_on(target_, d));
      piece *= std::min(have, want);
      target *= want;
    }
    for (int k = 0; k < static_cast<int>(active_.size()); ++k) {
      if (state.place(k) != target_.place(k) || state.order(k) != target_.order(k)) {
        ranks *= size(k);
      }
    }
    if (ranks > kMaxDirectRanks || piece <= 0) return 0;
    const double missing = std::max(target - piece, 0.0);
    const double messages = missing / piece;
    const double latency =
        messages / (1 / std::max(links_.inter_latency, 1e-12) +
                    1 / std::max(links_.intra_latency, 1e-12));
    const double transfer = missing * static_cast<double>(element_) /
                            (links_.inter_bandwidth + links_.intra_bandwidth);
    return std::max({latency, transfer, 1e-9});
  }
  void try_direct(int n) {
    const Layout a = decode(nodes_[n].state, false), b = decode(target_, false);
    const DirectExchange direct(mesh_, links_.ranks_per_node, shape_, a, b);
    const double seconds = direct.cost(links_, static_cast<int64_t>(element_)).seconds;
    if (seconds == 0) return;  // slices do
    Move move{Kind::kDirect, {}, -1, -1};
    for (Axis axis : direct.axes()) move.axes.push_back(number(axis));
    const double extra = trouble(move);
    reach(target_, nodes_[n].seconds + seconds + extra, n, std::move(move));
  }
  /// Pending axes that come next on dim d in the target, scattered in one step when they are several.
  void scatter_run(int n, int d, const std::vector<int>& list) {
    const State state = nodes_[n].state;
    const std::vector<int> wanted = on_dim(target_, d);
    if (wanted.size() < list.size() || !std::equal(list.begin(), list.end(), wanted.begin())) return;
    std::vector<int> run;
    for (size_t i = list.size(); i < wanted.size() && state.place(wanted[i]) == kPending; ++i) {
      run.push_back(wanted[i]);
    }
    State after = state;
    if (run.size() > 1 && append(after, d, run)) {
      step(n, after, {Kind::kReduceScatter, run, d, -1});
    }
  }

  void merge_neighbours(ReshardPlan& plan) const {
    for (size_t i = 0; i + 1 < plan.steps.size();) {
      ReshardStep joined = plan.steps[i];
      const ReshardStep& next = plan.steps[i + 1];
      bool may = joined.kind == next.kind && joined.dim == next.dim;
      if (joined.kind == Kind::kAllReduce || joined.kind == Kind::kKeepOnFirst) {
        may = may && is_maximum(joined) == is_maximum(next);
        joined.axes.insert(joined.axes.end(), next.axes.begin(), next.axes.end());
        std::sort(joined.axes.begin(), joined.axes.end());
      } else if (joined.kind == Kind::kAllGather) {
        joined.axes.insert(joined.axes.begin(), next.axes.begin(), next.axes.end());
      } else {
        may = may && (joined.kind == Kind::kSlice || joined.kind == Kind::kReduceScatter);
        joined.axes.insert(joined.axes.end(), next.axes.begin(), next.axes.end());
      }
      if (may) {
        const GroupShape a = group(plan.steps[i].axes), b = group(next.axes);
        const bool same_class = (a.nodes == 1 && b.nodes == 1) ||
                                (a.per_node == 1 && b.per_node == 1);
        const bool moves_nothing = joined.kind == Kind::kSlice || joined.kind == Kind::kKeepOnFirst;
        const CollectiveCost cost = collective_cost(links_, joined.kind, group(joined.axes),
                                                    bytes_of(encode_full(joined.before)));
        may = moves_nothing || same_class;
        // One ring has more hops than two short ones; whoever runs the group may choose either.
        joined.seconds = std::min(cost.seconds, plan.steps[i].seconds + next.seconds);
        joined.bytes = cost.bytes;
      }
      if (!may) {
        ++i;
        continue;
      }
      joined.after = next.after;
      plan.steps[i] = std::move(joined);
      plan.steps.erase(plan.steps.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  static bool is_maximum(const ReshardStep& step) {
    const auto& axes = step.before.partial_max;
    return std::find(axes.begin(), axes.end(), step.axes[0]) != axes.end();
  }
  /// The state of a full layout (kept axes included in its dims).
  State encode_full(Layout layout) const {
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      layout.dims[d].erase(layout.dims[d].begin(),
                           layout.dims[d].begin() +
                               static_cast<std::ptrdiff_t>(kept_.dims[d].size()));
    }
    std::erase_if(layout.partial, [&](Axis a) {
      return std::binary_search(kept_.partial.begin(), kept_.partial.end(), a);
    });
    std::erase_if(layout.partial_max, [&](Axis a) {
      return std::binary_search(kept_.partial_max.begin(), kept_.partial_max.end(), a);
    });
    return encode(layout);
  }

  const Mesh& mesh_;
  const LinkModel& links_;
  Shape shape_;  // of what the kept axes leave
  size_t element_;
  std::map<std::vector<Axis>, GroupShape>& groups_;
  Layout kept_;
  std::vector<Axis> active_;
  State source_, target_;
  int64_t local_bytes_ = 0;
  double limit_ = 0;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, int> index_;
  std::priority_queue<std::tuple<double, int>, std::vector<std::tuple<double, int>>,
                      std::greater<>>* queue_ = nullptr;
};

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSlice: return "Slice";
    case Kind::kKeepOnFirst: return "KeepOnFirst";
    case Kind::kAllGather: return "AllGather";
    case Kind::kAllToAll: return "AllToAll";
    case Kind::kAllReduce: return "AllReduce";
    case Kind::kReduceScatter: return "ReduceScatter";
    case Kind::kDirect: return "Direct";
  }
  return "?";
}

}  // namespace

struct ReshardPlanner::Cache {
  using Key = std::tuple<Shape, size_t, Layout, Layout, double>;
  std::map<Key, ReshardPlan> plans;
  std::map<std::vector<Axis>, GroupShape> groups;
};

ReshardPlanner::ReshardPlanner(const Mesh& mesh, const LinkModel& links)
    : mesh_(mesh), links_(links), cache_(std::make_unique<Cache>()) {}
ReshardPlanner::~ReshardPlanner() = default;

const ReshardPlan& ReshardPlanner::plan(const Shape& shape, DType dtype, const Layout& from,
                                        const Layout& to, double memory_factor) {
  MT_CHECK(from.dims.size() == shape.size() && to.dims.size() == shape.size(), "shape ",
           to_string(shape), ", from ", to_string(mesh_, from), " to ", to_string(mesh_, to));
  const auto [at, fresh] = cache_->plans.try_emplace(
      Cache::Key{shape, size_of(dtype), from, to, memory_factor});
  if (!fresh || from == to) return at->second;
  PlanSearch search(mesh_, links_, shape, dtype, from, to, cache_->groups);
  if (!search.run(memory_factor)) {
    const bool found = search.run(1e300);
    MT_CHECK(found, "no way from ", to_string(mesh_, from), " to ", to_string(mesh_, to), " of ",
             to_string(shape));
  }
  at->second = search.plan();
  return at->second;
}

ReshardPlan plan_reshard(const Mesh& mesh, const LinkModel& links, const Shape& shape, DType dtype,
                         const Layout& from, const Layout& to, double memory_factor) {
  return ReshardPlanner(mesh, links).plan(shape, dtype, from, to, memory_factor);
}

std::string to_string(const Mesh& mesh, const ReshardPlan& plan) {
  std::vector<std::string> words;
  for (const ReshardStep& step : plan.steps) {
    std::string text = name_of(step.kind);
    const std::string axes = axes_text(mesh, step.axes);
    if (step.kind == Kind::kDirect) {
      // One round between two layouts: their texts say all.
      text += "(" + to_string(mesh, step.before) + "->" + to_string(mesh, step.after) + ")";
    } else if (step.kind == Kind::kAllToAll) {
      text += cat("(", axes, ":", step.dim, "->", step.to_dim, ")");
    } else if (step.dim >= 0) {
      text += cat("(", step.dim, ",", axes, ")");
    } else {
      text += "(" + axes + ")";
    }
    words.push_back(std::move(text));
  }
  return join(words, ", ");
}

}  // namespace moetrain
