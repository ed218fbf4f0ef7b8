// Reverse-mode differentiation: walks the graph backwards and appends every op's vjp.
#include "ops/autodiff.h"

#include <algorithm>

#include "ops/basic.h"
#include "ops/common.h"

namespace moetrain {
namespace {

/// Nodes from which a value of `wrt` can be reached against the arrows: they pass gradients on.
std::vector<char> leading_to(const Graph& graph, const std::vector<Value>& wrt) {
  std::vector<char> leads(graph.nodes.size(), 0);
  for (Value v : wrt) {
    MT_CHECK(v.valid() && v.node < static_cast<int>(graph.nodes.size()), "gradient of no value");
    leads[v.node] = 1;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (Value v : graph.nodes[i].inputs) leads[i] |= leads[v.node];
  }
  return leads;
}

/// Removes nodes from `first` on that no kept value needs, and renumbers. A vjp writes the gradients
/// of all its operands at once; those nobody asked for end here.
void drop_unused(Graph& graph, int first, std::vector<Value>& kept) {
  const int count = static_cast<int>(graph.nodes.size());
  std::vector<char> used(count, 0);
  for (Value v : kept) {
    if (v.valid()) used[v.node] = 1;
  }
  for (int i = count - 1; i >= first; --i) {
    if (!used[i]) continue;
    for (Value v : graph.nodes[i].inputs) used[v.node] = 1;
  }
  std::vector<int> moved(count);
  int next = first;
  for (int i = 0; i < count; ++i) {
    moved[i] = i;
    if (i < first || !used[i]) continue;
    moved[i] = next;
    for (Value& v : graph.nodes[i].inputs) v.node = moved[v.node];
    if (next != i) graph.nodes[next] = std::move(graph.nodes[i]);
    ++next;
  }
  graph.nodes.resize(next);
  for (Value& v : kept) {
    if (v.valid()) v.node = moved[v.node];
  }
}

}  // namespace

std::vector<Value> gradients(Graph& graph, Value loss, const std::vector<Value>& wrt) {
  MT_CHECK(graph.type(loss).shape.empty(), "the loss is ", to_string(graph.type(loss)),
           ", not a scalar");
  const std::vector<char> leads = leading_to(graph, wrt);
  const int forward_nodes = static_cast<int>(graph.nodes.size());
  const Tag old_tag = graph.tag;
  const std::string old_scope = graph.scope;
  const int old_forward = graph.forward_of;

  // Every cotangent of a forward value, in the order its consumers were differentiated.
  std::vector<std::vector<std::vector<Value>>> cotangents(forward_nodes);
  for (int i = 0; i < forward_nodes; ++i) cotangents[i].resize(graph.nodes[i].outputs.size());
  auto enter = [&](int i) {
    graph.tag = graph.nodes[i].tag;
    graph.tag.phase = Phase::kBackward;
    graph.scope = graph.nodes[i].name + ".";
    graph.forward_of = i;
  };
  auto total = [&](Value v) {
    std::vector<Value>& terms = cotangents[v.node][v.output];
    const Tag tag = graph.tag;
    while (terms.size() > 1) {
      // Summed where the earliest reader is, so that one value goes back over a stage's border.
      graph.tag.stage = graph.node(terms[1]).tag.stage;
      terms[1] = ops::add(graph, terms[0], terms[1], "grad_sum");
      terms.erase(terms.begin());
    }
    graph.tag = tag;
    return terms.empty() ? Value{} : terms[0];
  };

  enter(loss.node);
  cotangents[loss.node][loss.output].push_back(
      graph.add(ops::kConstant, {},
                {{"dtype", ops::dtype_value(graph.type(loss).dtype)}, {"shape", Shape{}},
                 {"value", 1.0}},
                "seed"));
  for (int i = loss.node; i >= 0; --i) {
    if (!leads[i]) continue;
    enter(i);
    std::vector<Value> dy;
    for (int o = 0; o < static_cast<int>(cotangents[i].size()); ++o) dy.push_back(total({i, o}));
    const bool any = std::any_of(dy.begin(), dy.end(), [](Value v) { return v.valid(); });
    if (!any || graph.nodes[i].op->vjp == nullptr) continue;
    const std::vector<Value> grads = graph.nodes[i].op->vjp(graph, i, dy);
    const std::vector<Value> inputs = graph.nodes[i].inputs;
    MT_CHECK(grads.size() <= inputs.size(), "vjp of '", graph.nodes[i].name, "' gives ",
             grads.size(), " gradients for ", inputs.size(), " operands");
    for (size_t k = 0; k < grads.size(); ++k) {
      if (grads[k].valid() && leads[inputs[k].node]) {
        cotangents[inputs[k].node][inputs[k].output].push_back(grads[k]);
      }
    }
  }

  std::vector<Value> result;
  for (Value v : wrt) {
    const std::vector<Value>& terms = cotangents[v.node][v.output];
    result.push_back(terms.empty() ? Value{} : terms[0]);
  }
  drop_unused(graph, forward_nodes, result);
  graph.tag = old_tag;
  graph.scope = old_scope;
  graph.forward_of = old_forward;
  return result;
}

}  // namespace moetrain
