// RMSNorm takes over the sums next to it: the residual stream is read and written once per norm.
#include "compile/fuse/norm_residual.h"

#include <set>

#include "compile/fuse/rebuild.h"
#include "ops/basic.h"
#include "ops/common.h"
#include "ops/fused_norm.h"
#include "ops/norm.h"

namespace moetrain {

namespace {

bool is_sum(const Node& node) { return node.op == &ops::kAdd || node.op == &ops::kAddN; }

class NormResidualPass {
 public:
  NormResidualPass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), readers_(reader_counts(local.graph)),
        users_(users_of(local.graph)), report_(report) {}

  LocalGraph run() {
    for (size_t i = 0; i < old_.nodes.size(); ++i) find(static_cast<int>(i));
    for (size_t i = 0; i < old_.nodes.size(); ++i) {
      const int index = static_cast<int>(i);
      if (const auto at = forward_.find(index); at != forward_.end()) make_forward(index, at->second);
      else if (const auto at = backward_.find(index); at != backward_.end()) make_backward(index, at->second);
      else if (const auto at = narrowed_.find(index); at != narrowed_.end()) make_narrow(index, at->second);
      else if (!gone_.count(index)) rebuild_.copy(index);
    }
    return rebuild_.finish();
  }

 private:
  struct Forward {
    std::vector<Value> terms;
    int sum = -1, cast = -1;
  };
  struct Backward {
    Value other;
    int sum = -1, cast = -1;
    std::vector<Value> dy = {};
  };

  int64_t bytes(Value v) const { return expected_bytes(old_, v); }
  bool together(int a, int b) const { return same_phase(old_, a, b); }
  /// The residual stream and its gradient are float32; kernels are made for that.
  bool is_stream(Value v) const { return old_.type(v).dtype == DType::kF32; }
  /// Every reader of node `of` stands behind node `place`, so the value may be made there.
  bool read_only_behind(int of, int place) const {
    for (int user : users_[of]) {
      if (user < place) return false;
    }
    return true;
  }
  void absorb(int node) {
    gone_.insert(node);
    ++report_.nodes;
  }

  /// Terms of a sum with sums nobody else reads flattened into it.
  void flatten(int sum, std::vector<Value>& terms) {
    for (Value v : old_.nodes[sum].inputs) {
      const Node& node = old_.node(v);
      if (is_sum(node) && readers_.at(v) == 1 && together(v.node, sum) && !gone_.count(v.node)) {
        flatten(v.node, terms);
        absorb(v.node);
        report_.bytes_saved += 2 * bytes(v);
      } else {
        terms.push_back(v);
      }
    }
  }

  /// Terms of dy with widening casts and sums nobody else reads opened.
  void open(Value v, int norm, std::vector<Value>& terms) {
    const Node& node = old_.node(v);
    const bool widens = node.op == &ops::kCast &&
                        size_of(old_.type(node.inputs[0]).dtype) < size_of(node.outputs[0].dtype);
    if ((!is_sum(node) && !widens) || readers_.at(v) != 1 || !together(v.node, norm) || gone_.count(v.node)) {
      terms.push_back(v);
      return;
    }
    absorb(v.node);
    report_.bytes_saved += 2 * bytes(v);
    for (Value term : node.inputs) open(term, norm, terms);
  }

  /// The one cast of `v` that may be made together with it at `place`, or -1.
  int cast_of(Value v, int place) const { return bf16_cast_of(old_, users_, v, place); }

  void find(int index) {
    const Node& node = old_.nodes[index];
    if (node.op == &ops::kRmsNorm) {
      const int sum = node.inputs[0].node;
      if (!is_sum(old_.nodes[sum]) || gone_.count(sum) || !together(sum, index) ||
          !is_stream(node.inputs[0]) || !read_only_behind(sum, index)) {
        return;
      }
      Forward f;
      f.sum = sum;
      flatten(sum, f.terms);
      absorb(sum);
      report_.bytes_saved += bytes({sum, 0});
      f.cast = cast_of({index, 0}, index);
      take_cast(f.cast, {index, 0});
      forward_[index] = f;
    } else if (node.op == &ops::kRmsNormGrad && readers_.count({index, 0}) != 0 &&
               readers_.at({index, 0}) == 1) {
      if (const int cast = cast_of({index, 0}, index); cast >= 0 && is_stream({index, 0})) {
        absorb(cast);
        report_.bytes_saved += 2 * bytes({index, 0});
        narrowed_[index] = cast;
        return;
      }
      for (int sum : users_[index]) {
        const Node& add = old_.nodes[sum];
        if (add.op != &ops::kAdd) continue;
        const int mine = add.inputs[0] == Value{index, 0} ? 0 : add.inputs[1] == Value{index, 0} ? 1 : -1;
        if (mine < 0) continue;
        const Value other = add.inputs[1 - mine];
        if (other.node >= index || !together(sum, index) || !is_stream(other) ||
            !is_stream(node.inputs[1])) {
          return;
        }
        Backward b{other, sum, cast_of({sum, 0}, index)};
        absorb(sum);
        report_.bytes_saved += 2 * bytes({index, 0});
        take_cast(b.cast, {sum, 0});
        open(node.inputs[0], index, b.dy);
        backward_[index] = std::move(b);
        return;
      }
    }
  }

  void take_cast(int cast, Value of) {
    if (cast < 0) return;
    absorb(cast);
    report_.bytes_saved += bytes(of);
  }

  void make_forward(int index, const Forward& f) {
    const Node& node = old_.nodes[index];
    std::vector<Value> inputs = rebuild_.values(f.terms);
    inputs.push_back(rebuild_.value(node.inputs[1]));
    Attrs attrs = node.attrs;
    if (f.cast >= 0) attrs.set("copy", ops::dtype_value(DType::kBF16));
    const int made = rebuild_.append(ops::kAddRmsNorm, std::move(inputs), std::move(attrs), index);
    rebuild_.map({f.sum, 0}, {made, 0});
    rebuild_.map({index, 0}, {made, 1});
    rebuild_.map({index, 1}, {made, 2});
    if (f.cast >= 0) rebuild_.map({f.cast, 0}, {made, 3});
  }

  void make_backward(int index, const Backward& b) {
    std::vector<Value> inputs = rebuild_.values(
        {b.dy[0], old_.nodes[index].inputs[1], old_.nodes[index].inputs[2],
         old_.nodes[index].inputs[3], b.other});
    for (size_t i = 1; i < b.dy.size(); ++i) inputs.push_back(rebuild_.value(b.dy[i]));
    Attrs attrs = old_.nodes[index].attrs;
    if (b.cast >= 0) attrs.set("copy", ops::dtype_value(DType::kBF16));
    const int made =
        rebuild_.append(ops::kRmsNormGradAdd, std::move(inputs), std::move(attrs), index);
    rebuild_.map({b.sum, 0}, {made, 0});
    rebuild_.map({index, 1}, {made, 1});
    if (b.cast >= 0) rebuild_.map({b.cast, 0}, {made, 2});
  }

  void make_narrow(int index, int cast) {
    Attrs attrs = old_.nodes[index].attrs;
    attrs.set("dtype", ops::dtype_value(DType::kBF16));
    const int made = rebuild_.append(
        ops::kRmsNormGrad, rebuild_.values(old_.nodes[index].inputs), std::move(attrs), index);
    rebuild_.map({cast, 0}, {made, 0});
    rebuild_.map({index, 1}, {made, 1});
  }

  Rebuild rebuild_;
  const Graph& old_;
  const std::map<Value, int> readers_;
  const std::vector<std::vector<int>> users_;
  FusionReport& report_;
  std::map<int, Forward> forward_;    // by norm node
  std::map<int, Backward> backward_;  // by norm gradient node
  std::map<int, int> narrowed_;       // norm gradient node -> the cast of its dx
  std::set<int> gone_;
};

}  // namespace

LocalGraph fuse_norm_residual(const LocalGraph& local, FusionReport& report) {
  return NormResidualPass(local, report).run();
}

}  // namespace moetrain
