// The state of one partition run, shared by the walk, the redistributions and the local expansions.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "compile/partition.h"
#include "compile/stages.h"
#include "compile/transport.h"
#include "ops/local.h"

namespace moetrain {

/// One rank's part of a direct exchange: boxes relative to its source and target slice.
struct DirectMessages {
  std::vector<Axis> axes;
  std::vector<int64_t> send_boxes, send_bytes, recv_boxes, recv_bytes;
  Shape shape;  ///< of the target slice
};

class Partitioner {
 public:
  Partitioner(const Graph& graph, const ShardingResult& sharding, const Mesh& mesh,
              const LinkModel& links, int rank, std::optional<Transport> dispatch,
              const Stages& stages);
  LocalGraph run();

 private:
  // partition.cc
  void place(int node);
  Attrs local_attrs(int node) const;
  Value operand(int node, int index);
  void emit_outputs(int node);
  /// The same for one stage of several: what crosses the border becomes a send or a receive.
  void place_on_stage(int node);
  Attrs stream(int from_node, int to_node) const;
  /// Appends to the local graph with the tag of global node `like` and an exact name.
  int append(const OpDef& op, std::vector<Value> inputs, Attrs attrs, int like,
             const std::string& name);
  Value add(const OpDef& op, std::vector<Value> inputs, Attrs attrs, int like,
            const std::string& name) {
    return {append(op, std::move(inputs), std::move(attrs), like, name), 0};
  }
  void define(Value global, Value local) { made_[global] = local; }
  const Layout& produced(Value v) const {
    return sharding_.nodes[v.node].layouts.results[v.output];
  }
  const Layout& demanded(int node, int index) const {
    return sharding_.nodes[node].layouts.operands[index];
  }

  // redistribute.cc
  /// The local value of `v` in layout `to`, for consumer `like`; made once per phase.
  Value in_layout(Value v, const Layout& to, int like, const std::string& consumer);
  Value emit_step(Value x, const ReshardStep& step, const Type& global, int like,
                  const std::string& name);
  Value emit_direct(Value x, const ReshardStep& step, const Type& global, int like,
                    const std::string& name);
  const DirectMessages& direct_messages(const ReshardStep& step, const Type& global);
  bool leading_ones(Value x, int dim) const;
  Attrs over(const std::vector<Axis>& axes) const;

  // localize.cc
  bool localize(int node);
  std::vector<Axis> axes_of(int node, char factor) const;
  void localize_vocab_loss(int node);

  // localize_dispatch.cc
  void localize_dispatch(int node);
  void localize_dispatch_grad(int node);
  void localize_combine(int node);
  void localize_combine_grad(int node);
  /// Who takes part in the dispatch, by which transport.
  DispatchBundle form_groups(int node);
  /// The weights its combine will read, if they exist already; they travel with the expert ids.
  Value weight_of(int dispatch);
  Value in_dtype(Value x, DType dtype, int like);
  void count_once(DispatchBundle& bundle, Value idx, int like, const std::string& name);
  void count_columns(DispatchBundle& bundle, int like, const std::string& name);
  void bind_columns(DispatchBundle& bundle, int like, const std::string& name);

  // transport.cc
  /// Token rows [b, s, w] -> the rows of all sources at the ranks that pass them on; and the sum of what
  /// those ranks made of them, back at the sources.
  Value to_columns(Value x, const DispatchBundle& bundle, int like, const std::string& name);
  Value from_columns(Value y, const DispatchBundle& bundle, int like, const std::string& name);
  /// Rows in plan order -> expert-major rows at their experts' ranks, and back.
  Value to_experts(Value rows, const DispatchBundle& bundle, int like, const std::string& name);
  Value from_experts(Value rows, const DispatchBundle& bundle, int like, const std::string& name);

  const Graph& graph_;
  const ShardingResult& sharding_;
  const Mesh& mesh_;
  const LinkModel& links_;
  const int rank_;
  const std::optional<Transport> dispatch_;
  const Stages stages_;
  StageView view_;  ///< empty without stages
  LocalGraph out_;
  std::map<Value, Value> made_;  ///< global value -> local value in its produced layout
  std::map<std::tuple<Value, Layout, Phase, int>, Value> resharded_;  ///< per chunk and phase
  std::map<Value, DispatchBundle> bundles_;     ///< by global plan value
  std::map<Value, Value> returned_;             ///< combine's rows back in plan order, by global rows
  std::map<std::tuple<Shape, DType, Layout, Layout>, ReshardPlan> plans_;
  std::map<std::tuple<Shape, DType, Layout, Layout>, DirectMessages> direct_;
};

}  // namespace moetrain
