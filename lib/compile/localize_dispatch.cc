// Local expansion of dispatch, combine and their gradients: groups, counts, plans; rows move in
// transport.cc.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "compile/partitioner.h"
#include "ops/basic.h"
#include "ops/common.h"
#include "ops/experts.h"
#include "ops/route.h"

namespace moetrain {

using Outer = DispatchBundle::Outer;

std::string to_string(const DispatchNote& note) {
  const DispatchShape& s = note.shape;
  std::vector<std::string> prices;
  for (Transport t : kTransports) {
    char text[64];
    std::snprintf(text, sizeof text, "%s %.3g us", name_of(t),
                  note.choice.seconds[static_cast<size_t>(t)] * 1e6);
    prices.push_back(text);
  }
  return cat(note.name, "  ", name_of(note.choice.transport),
             note.chosen ? s.nodes == 1 ? " (one node)" : " (cheapest)" : " (parallel.dispatch)",
             "  ", s.nodes, " nodes x ", s.per_node, " ranks, ", s.tokens, " tokens, top ", s.top_k,
             " of ", s.experts, ": ", join(prices, ", "));
}

namespace {

/// How the members of a group lie on nodes: the same number of consecutive members on each, or not
/// at all.
struct Nodes {
  int64_t count = 1, per_node = 1;
  bool regular = true;
};

Nodes nodes_of(const std::vector<int>& group, int ranks_per_node) {
  std::vector<int64_t> sizes;
  std::vector<int> seen;
  for (int rank : group) {
    const int node = rank / std::max(1, ranks_per_node);
    if (seen.empty() || seen.back() != node) {
      seen.push_back(node);
      sizes.push_back(0);
    }
    ++sizes.back();
  }
  const bool equal =
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n == sizes[0]; });
  std::sort(seen.begin(), seen.end());
  const bool once = std::adjacent_find(seen.begin(), seen.end()) == seen.end();
  const int64_t members = static_cast<int64_t>(group.size());
  if (!equal || !once) return {members, 1, false};
  return {static_cast<int64_t>(sizes.size()), sizes[0], true};
}

}  // namespace

Value Partitioner::in_dtype(Value x, DType dtype, int like) {
  if (out_.graph.type(x).dtype == dtype) return x;
  return add(ops::kCast, {x}, {{"dtype", ops::dtype_value(dtype)}}, like,
             out_.graph.node(x).name + ".cast");
}

Value Partitioner::weight_of(int dispatch) {
  for (size_t i = dispatch; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    if (node.op != &ops::kCombine || node.inputs[1] != Value{dispatch, 1}) continue;
    if (made_.find(node.inputs[2]) == made_.end()) return {};
    return in_layout(node.inputs[2], demanded(static_cast<int>(i), 2), dispatch, node.name);
  }
  return {};
}

DispatchBundle Partitioner::form_groups(int index) {
  const Node& node = graph_.nodes[index];
  const std::vector<Axis> expert_axes = axes_of(index, 'e');
  std::vector<Axis> token_axes = axes_of(index, 'b');
  const std::vector<Axis> sequence_axes = axes_of(index, 's');
  token_axes.insert(token_axes.end(), sequence_axes.begin(), sequence_axes.end());
  // Tokens that are copied over an expert axis need not travel along it: every copy serves the
  // experts of its own place there, and the results are partial sums.
  std::vector<Axis> exchange;
  for (Axis a : expert_axes) {
    if (std::find(token_axes.begin(), token_axes.end(), a) != token_axes.end())
      exchange.push_back(a);
  }
  const std::vector<int> ranks = mesh_.group(rank_, exchange);
  const int64_t members = static_cast<int64_t>(ranks.size());
  const int64_t me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  const Type& idx = out_.graph.type(operand(index, 1));
  const Type& x = out_.graph.type(operand(index, 0));

  DispatchBundle b;
  b.experts = node.attrs.integer("experts");
  b.local_experts = b.experts / mesh_.size(expert_axes);
  b.top_k = idx.shape.back();
  b.tokens = numel(idx.shape) / b.top_k;
  for (int member : ranks) {
    b.first_experts.push_back(b.local_experts * mesh_.index_along(member, expert_axes));
  }

  const Nodes nodes = nodes_of(ranks, links_.ranks_per_node);
  DispatchNote note;
  note.name = node.name;
  note.shape = {nodes.count,
                nodes.per_node,
                b.tokens,
                b.top_k,
                b.experts,
                b.local_experts,
                x.shape.back() * static_cast<int64_t>(size_of(x.dtype))};
  const Node& router = graph_.node(node.inputs[1]);
  if (router.op == &ops::kRoute) {
    note.shape.groups = router.attrs.integer("groups");
    note.shape.top_groups = router.attrs.integer("top_groups");
  }
  if (router.op == &ops::kRoute && members * b.local_experts == b.experts) {
    const int64_t groups = note.shape.groups, top = note.shape.top_groups;
    if (groups % nodes.count == 0)
      note.shape.node_limit = top;
    else if (nodes.count % groups == 0)
      note.shape.node_limit = top * (nodes.count / groups);
  }
  note.choice = choose_transport(note.shape, links_);
  note.chosen = !dispatch_.has_value();
  if (dispatch_) note.choice.transport = *dispatch_;
  const Transport transport = note.choice.transport;
  const bool by_node = transport == Transport::kAllGather || transport == Transport::kDedup;
  if (by_node && !nodes.regular && !note.chosen) {
    throw UserError(cat("parallel.dispatch: ", name_of(transport), " needs equally many of the ",
                        members,
                        " ranks of an expert group on every node, one node after the "
                        "other; with parallel.ranks_per_node ",
                        links_.ranks_per_node, " they are ranks ", join(ranks, " "),
                        ": use alltoall or alltoall_once"));
  }
  if (members > 1) out_.dispatches.push_back(note);

  b.hit = transport == Transport::kDedup
              ? expected_nodes(note.shape) / static_cast<double>(nodes.count)
              : hit_probability(note.shape, b.local_experts);
  if (transport == Transport::kAllToAllOnce) {
    b.outer_members = members;
  } else if (by_node) {
    b.outer_members = nodes.count;
    b.inner_members = nodes.per_node;
  } else {
    b.inner_members = members;
  }
  if (b.outer_members > 1) {
    b.outer = transport == Transport::kAllGather ? Outer::kGather : Outer::kOnce;
  }
  b.outer_place = me / b.inner_members;
  b.inner_place = me % b.inner_members;

  b.group = over(exchange);
  std::vector<std::string> names;
  for (Axis a : exchange) names.push_back(mesh_.atoms[a].name);
  auto part = [&](const char* what, int64_t first, int64_t step, int64_t count) {
    if (count == members) return b.group;
    std::vector<int64_t> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(ranks[first + i * step]);
    return Attrs{{"ranks", list}, {"members", count}, {"group", cat(join(names, "*"), what)}};
  };
  b.outer_group = part(".across", b.inner_place, b.inner_members, b.outer_members);
  b.inner_group = part(".node", b.outer_place * b.inner_members, 1, b.inner_members);
  const auto mine = b.first_experts.begin() + b.outer_place * b.inner_members;
  b.inner_experts.assign(mine, mine + b.inner_members);

  b.out_capacity = b.tokens * std::min(b.top_k, b.outer_members);
  b.column_capacity = b.tokens * b.outer_members;
  b.send_capacity = b.column_capacity * std::min(b.top_k, b.inner_members * b.local_experts);
  b.recv_capacity = b.column_capacity * b.inner_members * std::min(b.top_k, b.local_experts);
  return b;
}

/// A row per (token, column), and all counts of both stages from one exchange.
void Partitioner::count_once(DispatchBundle& b, Value idx, int like, const std::string& name) {
  const int count = append(ops::kOnceCount, {idx},
                           {{"first_experts", b.first_experts},
                            {"local_experts", b.local_experts},
                            {"per_unit", b.inner_members}},
                           like, name + ".count");
  b.out_plan = {count, 0};
  const Value counts{count, 1};
  const bool everybody = b.inner_members > 1;  // a node's ranks need one another's counts as well
  const Value exchanged =
      add(everybody ? ops::kAllGather : ops::kAllToAll, {counts}, b.group, like, name + ".counts");
  const int tables =
      append(ops::kCountTables, {counts, exchanged},
             {{"unit", b.outer_place}, {"place", b.inner_place}}, like, name + ".tables");
  std::vector<Value> bound = {{tables, 0}, {tables, 1}, {tables, 2}};
  if (everybody) bound.push_back({tables, 3});
  b.outer_sent = 0;
  b.outer_received = 1;
  b.inner_sent = 2;
  b.inner_received = everybody ? 3 : 2;
  b.received = {tables, 3};

  const int64_t columns =
      std::max<int64_t>(1, static_cast<int64_t>(b.hit * static_cast<double>(b.column_capacity)));
  const int64_t rows =
      std::max<int64_t>(1, b.tokens * b.top_k * b.members() * b.local_experts / b.experts);
  std::vector<int64_t> expected = {columns, columns, rows},
                       largest = {b.out_capacity, b.column_capacity, b.send_capacity};
  if (everybody) {
    expected.push_back(rows);
    largest.push_back(b.recv_capacity);
  }
  b.bind =
      add(ops::kBind, bound, {{"expected", expected}, {"largest", largest}}, like, name + ".bind");
}

/// The plan over the tokens at this column and, unless the outer stage brought them, their counts.
void Partitioner::count_columns(DispatchBundle& b, int like, const std::string& name) {
  const bool fresh = b.outer != Outer::kOnce;
  const int count = append(ops::kDispatchCount, {b.idx},
                           {{"first_experts", b.inner_experts}, {"local_experts", b.local_experts}},
                           like, name + (fresh ? ".count" : ".plan"));
  b.plan = {count, 0};
  if (fresh) {
    b.counts = {count, 1};
    if (b.inner_members > 1) {
      b.received = add(ops::kAllToAll, {b.counts}, b.inner_group, like, name + ".counts");
    }
  }
  b.offsets = b.inner_members > 1 ? add(ops::kRowOffsets, {b.received}, {}, like, name + ".offsets")
                                  : b.plan;
}

/// The host's one wait, where no outer stage has made it.
void Partitioner::bind_columns(DispatchBundle& b, int like, const std::string& name) {
  const int64_t rows =
      std::max<int64_t>(1, b.tokens * b.top_k * b.members() * b.local_experts / b.experts);
  std::vector<Value> bound = {b.counts};
  std::vector<int64_t> expected = {rows}, largest = {b.send_capacity};
  if (b.inner_members > 1) {
    bound.push_back(b.received);
    expected.push_back(rows);
    largest.push_back(b.recv_capacity);
  }
  b.inner_sent = 0;
  b.inner_received = b.inner_members > 1 ? 1 : 0;
  b.bind =
      add(ops::kBind, bound, {{"expected", expected}, {"largest", largest}}, like, name + ".bind");
}

void Partitioner::localize_dispatch(int index) {
  const std::string& name = graph_.nodes[index].name;
  const Value x = operand(index, 0), idx = operand(index, 1);
  DispatchBundle b = form_groups(index);
  b.source_idx = b.idx = idx;
  if (b.outer == Outer::kOnce) count_once(b, idx, index, name);
  if (b.outer != Outer::kNone) {  // the routing travels ahead of the rows
    const Value weight = weight_of(index);
    if (weight.valid()) {
      const Value packed = add(ops::kPackRouting, {idx, weight}, {}, index, name + ".routing");
      const Value moved = to_columns(packed, b, index, name + ".routing");
      const int unpacked =
          append(ops::kUnpackRouting, {moved}, {{"rows_of", std::vector<int64_t>{0, 0}}}, index,
                 name + ".routing.unpack");
      b.idx = {unpacked, 0};
      b.weight = {unpacked, 1};
    } else {
      b.idx = to_columns(idx, b, index, name + ".routing");
    }
  }
  count_columns(b, index, name);
  // Where the sizes of the outer stage are static, its rows are under way while the host waits for
  // counts.
  const Value columns = to_columns(x, b, index, name);
  if (b.outer != Outer::kOnce) bind_columns(b, index, name);
  const Value rows = add(ops::kGatherRows, {columns, b.plan, b.bind},
                         {{"experts", b.inner_members * b.local_experts},
                          {"which", b.inner_sent},
                          {"capacity", b.send_capacity},
                          {"top_k", b.top_k}},
                         index, name + ".gather");
  bundles_[{index, 1}] = b;
  define({index, 1}, b.plan);
  define({index, 0}, to_experts(rows, b, index, name));
}

void Partitioner::localize_dispatch_grad(int index) {
  const Node& node = graph_.nodes[index];
  const DispatchBundle& b = bundles_.at(node.inputs[1]);
  const Value rows = from_experts(operand(index, 0), b, index, node.name);
  Attrs attrs = node.attrs;
  attrs.set("experts", b.inner_members * b.local_experts).set("rows_of", std::vector<int64_t>{2});
  const Value idx = b.outer == Outer::kNone ? operand(index, 2) : b.idx;
  const Value dx = add(ops::kDispatchGrad, {rows, b.plan, idx}, attrs, index, node.name);
  define({index, 0}, from_columns(dx, b, index, node.name));
}

void Partitioner::localize_combine(int index) {
  const Node& node = graph_.nodes[index];
  DispatchBundle& b = bundles_.at(node.inputs[1]);
  if (!b.weight.valid()) b.weight = to_columns(operand(index, 2), b, index, node.name + ".weight");
  const Value rows = from_experts(operand(index, 0), b, index, node.name);
  returned_[node.inputs[0]] = rows;
  Attrs attrs = node.attrs;
  attrs.set("experts", b.inner_members * b.local_experts).set("rows_of", std::vector<int64_t>{3});
  // Sums that still have to cross to their source travel in the rows' own dtype.
  const DType wide = node.outputs[0].dtype, narrow = out_.graph.type(rows).dtype;
  if (b.outer != Outer::kNone) attrs.set("dtype", ops::dtype_value(narrow));
  const Value y = add(ops::kCombine, {rows, b.plan, b.weight, b.idx}, attrs, index, node.name);
  define({index, 0}, in_dtype(from_columns(y, b, index, node.name), wide, index));
}

void Partitioner::localize_combine_grad(int index) {
  const Node& node = graph_.nodes[index];
  const DispatchBundle& b = bundles_.at(node.inputs[1]);
  Attrs attrs = node.attrs;
  attrs.set("experts", b.inner_members * b.local_experts)
      .set("rows_of", std::vector<int64_t>{4, 2});
  Value dy = operand(index, 0);
  if (b.outer != Outer::kNone) {
    dy = to_columns(in_dtype(dy, node.outputs[0].dtype, index), b, index, node.name);
  }
  const int grad =
      append(ops::kCombineGrad, {dy, b.plan, b.weight, b.idx, returned_.at(node.inputs[4])}, attrs,
             index, node.name);
  define({index, 0}, to_experts({grad, 0}, b, index, node.name));
  define({index, 1}, from_columns({grad, 1}, b, index, node.name + ".weight"));
}

}  // namespace moetrain
