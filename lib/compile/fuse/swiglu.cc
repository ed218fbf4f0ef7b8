// swiglu as the epilogue of the products that make its operands, or its gradient's.
#include "compile/fuse/swiglu.h"

#include <set>

#include "compile/fuse/rebuild.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/projections.h"
#include "ops/swiglu.h"

namespace moetrain {

namespace {

class SwigluPass {
 public:
  SwigluPass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), readers_(reader_counts(local.graph)), report_(report) {}

  LocalGraph run() {
    for (size_t i = 0; i < old_.nodes.size(); ++i) find(static_cast<int>(i));
    for (int i = 0; i < static_cast<int>(old_.nodes.size()); ++i) {
      if (const auto at = forward_.find(i); at != forward_.end()) make_forward(i, at->second);
      else if (const auto grad = backward_.find(i); grad != backward_.end()) make_backward(i, grad->second);
      else if (!gone_.count(i)) rebuild_.copy(i);
    }
    return rebuild_.finish();
  }

 private:
  int readers(Value v) const {
    const auto at = readers_.find(v);
    return at == readers_.end() ? 0 : at->second;
  }

  void find(int index) {
    const Node& node = old_.nodes[index];
    if (node.op == &ops::kSwiglu) {
      const int product = node.inputs[0].node;
      const Node& p = old_.nodes[product];
      if (p.op != &ops::kProjections || p.attrs.integer("count") != 2 || p.attrs.has("act") ||
          !(p.tag == node.tag) || node.inputs[0] != Value{product, 0} ||
          node.inputs[1] != Value{product, 1} || forward_.count(product)) {
        return;
      }
      forward_[product] = index;
      gone_.insert(index);
      ++report_.nodes;
      const bool kept = readers({product, 0}) > 1 || readers({product, 1}) > 1;
      report_.bytes_saved += (kept ? 2 : 4) * expected_bytes(old_, {product, 0});
    } else if (node.op == &ops::kSwigluGrad) {
      const int product = node.inputs[0].node;
      const Node& p = old_.nodes[product];
      if ((p.op != &ops::kMatmulDx && p.op != &ops::kGroupedMatmulDx) || readers(node.inputs[0]) != 1 ||
          !(p.tag == node.tag)) {
        return;
      }
      backward_[index] = product;
      gone_.insert(product);
      ++report_.nodes;
      report_.bytes_saved += 2 * expected_bytes(old_, node.inputs[0]);
    }
  }

  void make_forward(int product, int activation) {
    const Node& node = old_.nodes[product];
    Attrs attrs = node.attrs;
    attrs.set("act", std::string("swiglu"));
    const bool kept = readers({product, 0}) > 1 || readers({product, 1}) > 1;
    if (!kept) attrs.set("keep", int64_t{0});
    const int made =
        rebuild_.append(ops::kProjections, rebuild_.values(node.inputs), std::move(attrs), product);
    if (kept) {
      rebuild_.map({product, 0}, {made, 0});
      rebuild_.map({product, 1}, {made, 1});
    }
    rebuild_.map({activation, 0}, {made, kept ? 2 : 0});
  }

  void make_backward(int index, int product) {
    const Node &node = old_.nodes[index], &p = old_.nodes[product];
    std::vector<Value> inputs{rebuild_.value(p.inputs[0]), rebuild_.value(p.inputs[1]),
                              rebuild_.value(node.inputs[1]), rebuild_.value(node.inputs[2])};
    Attrs attrs;
    if (p.op == &ops::kGroupedMatmulDx) {
      attrs.set("grouped", int64_t{1});
      inputs.push_back(rebuild_.value(p.inputs[2]));
    }
    const int made = rebuild_.append(ops::kMatmulDxSwiglu, std::move(inputs), std::move(attrs), index);
    rebuild_.map({index, 0}, {made, 0});
    rebuild_.map({index, 1}, {made, 1});
  }

  Rebuild rebuild_;
  const Graph& old_;
  const std::map<Value, int> readers_;
  FusionReport& report_;
  std::map<int, int> forward_;   // product -> activation
  std::map<int, int> backward_;  // activation's gradient -> product
  std::set<int> gone_;
};

}  // namespace

LocalGraph fuse_swiglu(const LocalGraph& local, FusionReport& report) {
  return SwigluPass(local, report).run();
}

}  // namespace moetrain
