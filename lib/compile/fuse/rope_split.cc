// Rotary embedding takes over the split, concatenation, casts and copies around it.
#include "compile/fuse/rope_split.h"

#include <algorithm>
#include <set>

#include "compile/fuse/rebuild.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/common.h"
#include "ops/fused_rope.h"
#include "ops/local.h"
#include "ops/norm.h"
#include "ops/pipe.h"

namespace moetrain {

namespace {

/// The attributes of `rope` and, where it has them, of `norm`.
Attrs both(const Node& rope, const Node& norm) {
  Attrs attrs = rope.attrs;
  for (const auto& [name, value] : norm.attrs.items()) attrs.set(name, value);
  return attrs;
}

class RopeSplitPass {
 public:
  RopeSplitPass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), readers_(reader_counts(local.graph)),
        users_(users_of(local.graph)), report_(report) {}

  LocalGraph run() {
    const int n = static_cast<int>(old_.nodes.size());
    for (int i = 0; i < n; ++i) find_backward(i);
    for (int i = 0; i < n; ++i) find_forward(i);
    for (int i = 0; i < n; ++i) {
      if (const auto at = backward_.find(i); at != backward_.end()) make_backward(at->second);
      else if (const auto at = forward_.find(i); at != forward_.end()) make_forward(at->second);
      else if (in_place(i)) turn_in_place(i);
      else if (!gone_.count(i)) rebuild_.copy(i);
    }
    return rebuild_.finish();
  }

 private:
  struct Forward {
    int split = -1, norm = -1, rope = -1, cast = -1;
  };
  struct Backward {
    int norm = -1, rope = -1, widen = -1, concat = -1, narrow = -1;
    bool wide = true;  ///< somebody reads the joint gradient as it was before the cast
    Value x, dk;
  };

  int64_t bytes(Value v) const { return expected_bytes(old_, v); }
  bool together(int a, int b) const { return same_phase(old_, a, b); }
  int readers(Value v) const {
    const auto at = readers_.find(v);
    return at == readers_.end() ? 0 : at->second;
  }
  /// The one reader of `v`, if it is a node of kind `op` together with `near`; else -1.
  int only_reader(Value v, const OpDef& op, int near) const {
    if (readers(v) != 1) return -1;
    for (int user : users_[v.node]) {
      const Node& node = old_.nodes[user];
      const bool reads = std::find(node.inputs.begin(), node.inputs.end(), v) != node.inputs.end();
      if (reads) return node.op == &op && together(user, near) ? user : -1;
    }
    return -1;
  }
  /// A rope that turns whole rows of a value without heads.
  bool turns_rows(const Node& rope) const {
    const Shape& shape = rope.outputs[0].shape;
    return rope.op == &ops::kRope && shape.size() == 3 && rope.attrs.integer("rope_dim") == shape[2];
  }

  /// Where the nodes of `group` can be made as one: the first of them behind all operands, if no reader of
  /// a result that stays stands before it; else -1.
  int place_of(const std::vector<int>& group, const std::vector<Value>& operands,
               const std::vector<Value>& results) const {
    int after = -1;
    for (Value v : operands) {
      if (!old_.node(v).inputs.empty()) after = std::max(after, v.node);
    }
    int place = -1;
    for (int node : group) {
      if (node > after && (place < 0 || node < place)) place = node;
    }
    for (Value v : results) {
      for (int user : users_[v.node]) {
        const bool inside = std::find(group.begin(), group.end(), user) != group.end();
        if (!inside && user < place) return -1;
      }
    }
    return place;
  }

  void absorb(const std::vector<int>& group) {
    for (int node : group) gone_.insert(node);
    report_.nodes += static_cast<int>(group.size()) - 1;
  }

  /// concat(rms_norm_grad, rope(cast?)), cast?
  void find_backward(int concat) {
    const Node& node = old_.nodes[concat];
    if (node.op != &ops::kConcat || node.inputs.size() != 2) return;
    const Value dx = node.inputs[0], turned = node.inputs[1];
    Backward b;
    b.norm = dx.node, b.rope = turned.node, b.concat = concat;
    const Node &norm = old_.nodes[b.norm], &rope = old_.nodes[b.rope];
    if (norm.op != &ops::kRmsNormGrad || dx.output != 0 || !turns_rows(rope)) return;
    if (only_reader(dx, ops::kConcat, b.norm) != concat ||
        only_reader(turned, ops::kConcat, b.rope) != concat || !together(b.norm, b.rope) ||
        old_.type(dx).shape.size() != 3) {
      return;
    }
    std::vector<int> group{b.norm, b.rope, concat};
    b.dk = rope.inputs[0];
    if (old_.node(b.dk).op == &ops::kCast && only_reader(b.dk, ops::kRope, concat) == b.rope &&
        together(b.dk.node, concat)) {
      b.widen = b.dk.node;
      b.dk = old_.node(b.dk).inputs[0];
      group.push_back(b.widen);
    }
    std::vector<Value> results{{b.norm, 1}, {concat, 0}};
    b.narrow = cast_of({concat, 0}, concat);
    if (b.narrow >= 0) {
      b.wide = readers({concat, 0}) > 1;
      group.push_back(b.narrow);
      results.push_back({b.narrow, 0});
    }
    // The first part of a split is read where it stands in the joint value.
    b.x = norm.inputs[1];
    const Node& split = old_.node(b.x);
    if (split.op == &ops::kSplit && b.x.output == 0 && split.inputs.size() == 1) {
      b.x = split.inputs[0];
    }
    const int place = place_of(
        group, {norm.inputs[0], b.x, norm.inputs[2], norm.inputs[3], b.dk, rope.inputs[1]}, results);
    if (place < 0) return;
    if (b.x.node != norm.inputs[1].node) reads_joint_.insert(b.norm);
    absorb(group);
    const Value whole{concat, 0};
    report_.bytes_saved += bytes(dx) + bytes(turned) + bytes(whole);
    if (b.widen >= 0) report_.bytes_saved += 2 * bytes(turned);
    if (b.narrow >= 0) report_.bytes_saved += (b.wide ? 1 : 2) * bytes(whole);
    backward_[place] = b;
  }

  int cast_of(Value v, int place) const { return bf16_cast_of(old_, users_, v, place); }

  /// split -> rms_norm, rope -> cast?
  void find_forward(int split) {
    const Node& node = old_.nodes[split];
    if (node.op != &ops::kSplit || node.outputs.size() != 2 || node.outputs[0].shape.size() != 3) {
      return;
    }
    Forward f;
    f.split = split;
    f.rope = only_reader({split, 1}, ops::kRope, split);
    if (f.rope < 0 || !turns_rows(old_.nodes[f.rope])) return;
    int known = 0;  // readers of the first part that will not need it
    for (int user : users_[split]) {
      const Node& reader = old_.nodes[user];
      if (reader.inputs[0] == Value{split, 0} && reader.op == &ops::kRmsNorm && f.norm < 0 &&
          together(user, split)) {
        f.norm = user;
        ++known;
      } else if (reads_joint_.count(user)) {
        ++known;
      }
    }
    if (f.norm < 0 || known < readers({split, 0})) return;
    std::vector<int> group{split, f.norm, f.rope};
    std::vector<Value> results{{f.norm, 0}, {f.norm, 1}};
    f.cast = only_reader({f.rope, 0}, ops::kCast, split);
    if (f.cast >= 0) group.push_back(f.cast);
    results.push_back({f.cast >= 0 ? f.cast : f.rope, 0});
    const int place =
        place_of(group,
                 {node.inputs[0], old_.nodes[f.norm].inputs[1], old_.nodes[f.rope].inputs[1]}, results);
    if (place < 0) return;
    absorb(group);
    // Written and read again: both parts, and the turned one before its cast.
    report_.bytes_saved += 2 * bytes(node.inputs[0]);
    if (f.cast >= 0) report_.bytes_saved += 2 * bytes({f.rope, 0});
    forward_[place] = f;
  }

  void make_forward(const Forward& f) {
    const Node &norm = old_.nodes[f.norm], &rope = old_.nodes[f.rope];
    Attrs attrs = both(rope, norm);
    if (f.cast >= 0) {
      attrs.set("rope_dtype", ops::dtype_value(old_.nodes[f.cast].outputs[0].dtype));
    }
    const int made = rebuild_.append(
        ops::kNormRope,
        rebuild_.values({old_.nodes[f.split].inputs[0], norm.inputs[1], rope.inputs[1]}),
        std::move(attrs), f.norm);
    rebuild_.map({f.norm, 0}, {made, 0});
    rebuild_.map({f.norm, 1}, {made, 1});
    rebuild_.map({f.cast >= 0 ? f.cast : f.rope, 0}, {made, 2});
  }

  void make_backward(const Backward& b) {
    const Node &norm = old_.nodes[b.norm], &rope = old_.nodes[b.rope];
    Attrs attrs = rope.attrs;
    const DType wide = old_.nodes[b.concat].outputs[0].dtype;
    attrs.set("dtype", ops::dtype_value(b.wide ? wide : DType::kBF16));
    if (b.narrow >= 0 && b.wide) attrs.set("copy", ops::dtype_value(DType::kBF16));
    const int made = rebuild_.append(
        ops::kNormRopeGrad,
        rebuild_.values({norm.inputs[0], b.x, norm.inputs[2], norm.inputs[3], b.dk, rope.inputs[1]}),
        std::move(attrs), b.norm);
    rebuild_.map({b.norm, 1}, {made, 1});
    if (b.wide) rebuild_.map({b.concat, 0}, {made, 0});
    if (b.narrow >= 0) rebuild_.map({b.narrow, 0}, {made, b.wide ? 2 : 0});
  }

  /// May rope `index` overwrite its operand? It is the only reader, under whatever shape, of what a node
  /// of its own phase and stage computed.
  bool in_place(int index) const {
    const Node& node = old_.nodes[index];
    if (gone_.count(index) || node.op != &ops::kRope) return false;
    for (Value v = node.inputs[0];;) {
      const Node& from = old_.node(v);
      if (readers(v) != 1 || !together(v.node, index)) return false;
      const int shared = from.op->alias ? from.op->alias(from.attrs, v.output) : -1;
      if (shared < 0) {
        return !from.inputs.empty() && !ops::is_collective(*from.op) && !ops::is_transfer(*from.op);
      }
      v = from.inputs[shared];
    }
  }

  void turn_in_place(int index) {
    const Node& node = old_.nodes[index];
    Attrs attrs = node.attrs;
    attrs.set("in_place", int64_t{1});
    const int made =
        rebuild_.append(ops::kRope, rebuild_.values(node.inputs), std::move(attrs), index);
    rebuild_.map({index, 0}, {made, 0});
    const int64_t width = node.outputs[0].shape.back();
    report_.bytes_saved +=
        2 * bytes({index, 0}) / width * (width - node.attrs.integer("rope_dim"));
  }

  Rebuild rebuild_;
  const Graph& old_;
  const std::map<Value, int> readers_;
  const std::vector<std::vector<int>> users_;
  FusionReport& report_;
  std::map<int, Forward> forward_;    // by the node in whose place it is made
  std::map<int, Backward> backward_;
  std::set<int> reads_joint_;  // norm gradients that no longer read the split's first part
  std::set<int> gone_;
};

}  // namespace

LocalGraph fuse_rope_split(const LocalGraph& local, FusionReport& report) {
  return RopeSplitPass(local, report).run();
}

}  // namespace moetrain
