// The graph: append-only SSA nodes in topological order, the one form every compiler pass works on.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/attrs.h"

namespace moetrain {

struct OpDef;

/// What a value is. A ragged value is notionally [E, rows of one expert, ...rest]; it is stored as
/// [rows, ...rest] with the rows of all experts back to back, their number known at run time only.
/// On the global graph shape[1] of a ragged value is the largest row count (tokens x top-k).
struct Type {
  DType dtype = DType::kF32;
  Shape shape;
  bool ragged = false;
  bool operator==(const Type&) const = default;
};

std::string to_string(const Type& type);

/// Handle of one output of one node.
struct Value {
  int node = -1;
  int output = 0;
  bool valid() const { return node >= 0; }
  auto operator<=>(const Value&) const = default;
};

enum class Phase : uint8_t { kForward, kBackward, kUpdate };

/// Where a node belongs. `layer` is the published layer index (-1 outside layers), `stage` the chunk of
/// the pipeline in depth order (base/stages.h says which ranks hold it).
struct Tag {
  int layer = -1;
  int stage = 0;
  Phase phase = Phase::kForward;
  bool operator==(const Tag&) const = default;
};

struct Node {
  const OpDef* op = nullptr;
  std::vector<Value> inputs;
  Attrs attrs;
  std::vector<Type> outputs;
  Tag tag;
  std::string name;
  /// For a node made by a vjp: the forward node it differentiates (its factors carry the same
  /// letters); -1 otherwise.
  int forward = -1;
};

/// A value the outside reads or writes by name after a segment: metrics, dumps.
struct NamedValue {
  std::string name;
  Value value;
};

/// A state slot: lives from step to step. `value` is the node that reads it; an op whose output
/// aliases it (OpDef::alias) overwrites it in place.
struct Graph {
  std::vector<Node> nodes;
  std::vector<NamedValue> outputs;

  /// Appends a node: infers its output types, names it (`name` or the op's), tags it with `tag`.
  int append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, std::string name);
  /// The same for a caller that wants output 0.
  Value add(const OpDef& op, std::vector<Value> inputs, Attrs attrs = {}, std::string name = "") {
    return {append(op, std::move(inputs), std::move(attrs), std::move(name)), 0};
  }
  const Node& node(Value v) const { return nodes[v.node]; }
  const Type& type(Value v) const { return nodes[v.node].outputs[v.output]; }
  void mark_output(std::string name, Value value) { outputs.push_back({std::move(name), value}); }

  /// Tag and name prefix given to nodes appended from now on; set by builders.
  Tag tag;
  std::string scope;
  int forward_of = -1;
};

/// Sets tag layer and scope ("layers.3.attn.") for the life of the object.
class Scope {
 public:
  Scope(Graph& graph, const std::string& name, int layer = -2)
      : graph_(graph), old_scope_(graph.scope), old_tag_(graph.tag) {
    graph.scope += name;
    if (layer != -2) graph.tag.layer = layer;
  }
  ~Scope() {
    graph_.scope = old_scope_;
    graph_.tag = old_tag_;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Graph& graph_;
  std::string old_scope_;
  Tag old_tag_;
};

/// Checks every invariant (topological order, arity, types as inferred); throws InternalError.
void verify(const Graph& graph);
/// One line per node: `%12 = matmul(%3, %7) {..} : bf16[2, 16, 64]  # layers.0.attn.q_a`.
std::string print(const Graph& graph);

/// Consumers of every node, in topological order: users[n] lists node indices (with repeats).
std::vector<std::vector<int>> users_of(const Graph& graph);

}  // namespace moetrain
