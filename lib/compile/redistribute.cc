// Redistributions as nodes: every step of a plan becomes block copies around one collective.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "compile/partitioner.h"

namespace moetrain {

Attrs Partitioner::over(const std::vector<Axis>& axes) const {
  return Attrs{{"axes", std::vector<int64_t>(axes.begin(), axes.end())},
               {"members", int64_t{mesh_.size(axes)}}};
}

bool Partitioner::leading_ones(Value x, int dim) const {
  const Shape& shape = out_.graph.type(x).shape;
  return std::all_of(shape.begin(), shape.begin() + dim, [](int64_t d) { return d == 1; });
}

Value Partitioner::in_layout(Value v, const Layout& to, int like, const std::string& consumer) {
  const Layout& from = produced(v);
  const Value local = made_.at(v);
  if (from == to) return local;
  const Type& type = graph_.type(v);
  MT_CHECK(!type.ragged, "'", graph_.node(v).name, "' has rows counted at run time in layout ",
           to_string(mesh_, from), " but '", consumer, "' wants ", to_string(mesh_, to));
  const Phase phase = graph_.nodes[like].tag.phase;
  const auto key = std::make_tuple(v, to, phase, graph_.nodes[like].tag.stage);
  if (auto done = resharded_.find(key); done != resharded_.end()) return done->second;

  const auto plan_key = std::make_tuple(type.shape, type.dtype, from, to);
  auto found = plans_.find(plan_key);
  if (found == plans_.end()) {
    found = plans_.emplace(plan_key, plan_reshard(mesh_, links_, type.shape, type.dtype, from, to))
                .first;
  }
  const ReshardPlan& plan = found->second;
  Value x = local;
  for (const ReshardStep& step : plan.steps) {
    x = emit_step(x, step, type, like, graph_.node(v).name + " -> " + consumer);
  }
  out_.reshards.push_back({graph_.node(v).name, consumer, phase, type.shape, type.dtype, from, to,
                           plan});
  resharded_[key] = x;
  return x;
}

Value Partitioner::emit_step(Value x, const ReshardStep& step, const Type& global, int like,
                             const std::string& name) {
  using Kind = ReshardStep::Kind;
  const int64_t members = mesh_.size(step.axes);
  const int64_t index = mesh_.index_along(rank_, step.axes);
  auto stacked = [&](Value v, int dim) {
    Attrs attrs{{"dim", int64_t{dim}}, {"parts", members}};
    if (leading_ones(v, dim)) attrs.set("plain", int64_t{1});
    return add(ops::kStack, {v}, attrs, like, name);
  };
  auto unstacked = [&](Value v, int dim) {
    Attrs attrs{{"dim", int64_t{dim}}};
    const Shape& shape = out_.graph.type(v).shape;
    if (std::all_of(shape.begin() + 1, shape.begin() + 1 + dim, [](int64_t d) { return d == 1; })) {
      attrs.set("plain", int64_t{1});
    }
    return add(ops::kUnstack, {v}, attrs, like, name);
  };
  switch (step.kind) {
    case Kind::kSlice:
      return add(ops::kSliceBlock, {x},
                 {{"dim", int64_t{step.dim}}, {"parts", members}, {"index", index}}, like, name);
    case Kind::kKeepOnFirst:
      return add(ops::kKeepOnFirst, {x}, {{"keep", int64_t{index == 0}}}, like, name);
    case Kind::kAllGather:
      return unstacked(add(ops::kAllGather, {x}, over(step.axes), like, name), step.dim);
    case Kind::kAllToAll:
      return unstacked(
          add(ops::kAllToAll, {stacked(x, step.to_dim)}, over(step.axes), like, name), step.dim);
    case Kind::kAllReduce: {
      Attrs attrs = over(step.axes);
      const bool maximum = std::find(step.before.partial_max.begin(),
                                     step.before.partial_max.end(),
                                     step.axes[0]) != step.before.partial_max.end();
      if (maximum) attrs.set("maximum", int64_t{1});
      return add(ops::kAllReduce, {x}, attrs, like, name);
    }
    case Kind::kReduceScatter:
      return add(ops::kReduceScatter, {stacked(x, step.dim)}, over(step.axes), like, name);
    case Kind::kDirect: return emit_direct(x, step, global, like, name);
  }
  return x;
}

namespace {

/// The part of `a` inside `b`, or nothing.
bool intersect(const Box& a, const Box& b, Box& out) {
  out = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    if (end <= begin) return false;
    out.begin[d] = begin;
    out.extent[d] = end - begin;
  }
  return true;
}

void append_relative(std::vector<int64_t>& boxes, const Box& box, const Box& frame) {
  for (size_t d = 0; d < box.begin.size(); ++d) boxes.push_back(box.begin[d] - frame.begin[d]);
  boxes.insert(boxes.end(), box.extent.begin(), box.extent.end());
}

}  // namespace

const DirectMessages& Partitioner::direct_messages(const ReshardStep& step, const Type& global) {
  const auto key = std::make_tuple(global.shape, global.dtype, step.before, step.after);
  if (auto known = direct_.find(key); known != direct_.end()) return known->second;

  std::set<Axis> used;
  for (const Layout* layout : {&step.before, &step.after}) {
    for (const auto& dim : layout->dims) used.insert(dim.begin(), dim.end());
  }
  DirectMessages out;
  out.axes.assign(used.begin(), used.end());
  const std::vector<int> group = mesh_.group(rank_, out.axes);
  const int members = static_cast<int>(group.size());
  const int me = static_cast<int>(std::find(group.begin(), group.end(), rank_) - group.begin());
  const int64_t size = static_cast<int64_t>(size_of(global.dtype));
  auto node_of = [&](int m) { return group[m] / std::max(1, links_.ranks_per_node); };

  // Members that hold the same box, by the box's begin.
  std::map<std::vector<int64_t>, std::vector<int>> holders;
  std::vector<Box> source(members);
  for (int m = 0; m < members; ++m) {
    source[m] = slice_of(mesh_, step.before, global.shape, group[m]);
    holders[source[m].begin].push_back(m);
  }
  // Who sends a box to member `to`: itself, else a holder on its node (taking turns), else any holder
  // (taking turns). Every rank computes the same answer.
  auto sender = [&](const std::vector<int>& candidates, int to) {
    if (std::find(candidates.begin(), candidates.end(), to) != candidates.end()) return to;
    std::vector<int> near;
    for (int c : candidates) {
      if (node_of(c) == node_of(to)) near.push_back(c);
    }
    const std::vector<int>& pool = near.empty() ? candidates : near;
    return pool[to % pool.size()];
  };
  out.send_bytes.assign(members, 0);
  out.recv_bytes.assign(members, 0);
  Box part;
  for (int to = 0; to < members; ++to) {
    const Box target = slice_of(mesh_, step.after, global.shape, group[to]);
    if (!intersect(target, source[me], part)) continue;
    if (sender(holders.at(source[me].begin), to) != me) continue;
    append_relative(out.send_boxes, part, source[me]);
    out.send_bytes[to] = numel(part.extent) * size;
  }
  const Box target = slice_of(mesh_, step.after, global.shape, rank_);
  out.shape = target.extent;
  std::map<int, std::vector<int64_t>> by_sender;
  for (const auto& [begin, candidates] : holders) {
    if (!intersect(target, source[candidates[0]], part)) continue;
    const int from = sender(candidates, me);
    append_relative(by_sender[from], part, target);
    out.recv_bytes[from] = numel(part.extent) * size;
  }
  for (const auto& [from, boxes] : by_sender) {
    out.recv_boxes.insert(out.recv_boxes.end(), boxes.begin(), boxes.end());
  }
  return direct_.emplace(key, std::move(out)).first->second;
}

Value Partitioner::emit_direct(Value x, const ReshardStep& step, const Type& global, int like,
                               const std::string& name) {
  const DirectMessages& m = direct_messages(step, global);
  const Value packed = add(ops::kPackBoxes, {x}, {{"boxes", m.send_boxes}}, like, name);
  Attrs attrs = over(m.axes);
  attrs.set("send_bytes", m.send_bytes).set("recv_bytes", m.recv_bytes);
  const Value moved = add(ops::kExchange, {packed}, attrs, like, name);
  return add(ops::kUnpackBoxes, {moved},
             {{"boxes", m.recv_boxes},
              {"shape", m.shape},
              {"dtype", static_cast<int64_t>(global.dtype)}},
             like, name);
}

}  // namespace moetrain
