// What every rewrite of a local graph shares: copying nodes into a new graph while values are renamed.
#pragma once

#include <map>
#include <vector>

#include "compile/partition.h"

namespace moetrain {

/// Copies `old` node by node into a new graph. The pass decides for each old node whether to copy it,
/// replace it or leave it out; finish() then rewires ports and outputs.
class Rebuild {
 public:
  explicit Rebuild(const LocalGraph& old) : old_(old) {}

  const Graph& old() const { return old_.graph; }
  Graph& graph() { return new_; }
  /// The new value for an old one; copies an old leaf (no inputs) that has not been reached yet.
  Value value(Value old_value);
  std::vector<Value> values(const std::vector<Value>& old_values);
  /// The same, but for operand `but`, whose entry is left for the caller to fill.
  std::vector<Value> values_but(const std::vector<Value>& old_values, size_t but);
  /// Copies an old node as it is (a node copied before stays single).
  void copy(int node);
  /// Says that `old_value` is now `new_value`.
  void map(Value old_value, Value new_value) { map_[old_value] = new_value; }
  /// Appends a node in the place (tag) and under the name of old node `like`.
  int append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, int like,
             const std::string& name = "");
  /// The rewritten graph with all ports.
  LocalGraph finish();

 private:
  const LocalGraph& old_;
  Graph new_;
  std::map<Value, Value> map_;
};

/// Number of readers of every value (graph outputs count).
std::map<Value, int> reader_counts(const Graph& graph);

/// Whether two nodes are of one phase and pipeline stage, so that a pass may merge them.
bool same_phase(const Graph& graph, int a, int b);
/// The cast of `v` to bf16 that may be made together with node `near`, or -1. `users`: users_of(graph).
int bf16_cast_of(const Graph& graph, const std::vector<std::vector<int>>& users, Value v, int near);

/// Stored bytes of a value; of a ragged one at the expected row count (its capacity where none is known).
int64_t expected_bytes(const Graph& graph, Value value);

}  // namespace moetrain
