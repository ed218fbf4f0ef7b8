// The compiler, read top to bottom.
#include "compile/compile.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "compile/fuse/passes.h"
#include "compile/late_sums.h"
#include "compile/lower.h"
#include "compile/place.h"
#include "compile/plays.h"

namespace moetrain {

namespace {

/// Runs passes one after the other, timing each.
class Passes {
 public:
  explicit Passes(std::vector<PassTime>& times) : times_(times) {}
  template <class Body>
  auto operator()(const std::string& name, Body body) {
    const auto begin = std::chrono::steady_clock::now();
    auto result = body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    times_.push_back({name, took.count(), 0, 0, 0});
    return result;
  }
  void nodes(size_t n) { times_.back().nodes = n; }
  void fused(const FusionReport& report) {
    times_.back().fused = report.nodes;
    times_.back().bytes_saved = report.bytes_saved;
  }

 private:
  std::vector<PassTime>& times_;
};

/// On one rank there is nothing to decide: every node keeps everything whole.
ShardingResult single_rank(const Graph& graph) {
  ShardingResult result;
  result.nodes.resize(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    NodeSharding& node = result.nodes[i];
    for (Value v : graph.nodes[i].inputs) {
      node.layouts.operands.push_back(replicated(graph.type(v).shape.size()));
    }
    for (const Type& t : graph.nodes[i].outputs) {
      node.layouts.results.push_back(replicated(t.shape.size()));
    }
    node.origin = "one rank";
  }
  return result;
}

/// Layouts are decided once for all stages, as if each were the first.
Mesh first_stage(Mesh mesh) {
  mesh.first_rank = 0;
  return mesh;
}

int stage_of(const CompileRequest& request) {
  return request.mesh.first_rank / request.mesh.size();
}

/// Without stages a forward pass of the timetable is the whole step, unless pairs of micro-batches overlap.
bool whole_steps(const CompileRequest& request) {
  return request.stages.count == 1 && request.order != PipelineOrder::kFused1F1B;
}

LowerOptions lower_options(const CompileRequest& request) {
  LowerOptions options;
  options.world = request.world;
  options.stages = request.stages;
  options.split_weights = request.order == PipelineOrder::kDualPipeV;
  options.whole_steps = whole_steps(request);
  options.links = request.links;
  options.overlap = request.overlap;
  for (int count : request.micro_batches) {
    if (!request.overlap.on || request.world == 1) break;
    const Timetable t = make_timetable(request.order, request.stages, count);
    for (auto& parts : merged_segments(t.of_stage.at(stage_of(request)), options.whole_steps,
                                       options.split_weights)) {
      auto& merged = options.merged;
      if (std::find(merged.begin(), merged.end(), parts) == merged.end()) merged.push_back(parts);
    }
  }
  return options;
}

/// Frames and rows for the fullest step.
void schedule(const CompileRequest& request, Plan& plan) {
  const int stage = stage_of(request);
  int64_t rows = 0, worst = 0;
  for (int count : request.micro_batches) {
    const Timetable t = make_timetable(request.order, request.stages, count);
    const std::vector<Play> plays = plays_of(plan, t.of_stage.at(stage));
    const std::vector<int> frames = frames_needed(plan, plays);
    std::vector<int> segments;
    for (const Play& play : plays) segments.push_back(play.segment);
    measure_rows(plan, segments);
    rows = std::max(rows, plan.ragged_bytes);
    worst = std::max(worst, plan.ragged_bytes_worst);
    for (size_t g = 0; g < frames.size(); ++g) {
      plan.frames[g].count = std::max(plan.frames[g].count, frames[g]);
    }
  }
  plan.ragged_bytes = rows;
  plan.ragged_bytes_worst = worst;
}

}  // namespace

Compiled compile(const Graph& graph, const CompileRequest& request) {
  Compiled out;
  Passes pass(out.passes);

  pass("verify", [&] { return verify(graph), 0; });
  pass.nodes(graph.nodes.size());

  PropagateOptions options;
  options.repeats = request.micro_batches.empty()
                        ? 1
                        : *std::min_element(request.micro_batches.begin(), request.micro_batches.end());
  out.sharding = pass("propagate", [&] {
    return request.mesh.size() == 1
               ? single_rank(graph)
               : propagate(graph, first_stage(request.mesh), request.links, request.rows, options);
  });
  pass.nodes(graph.nodes.size());

  pass("late sums", [&] { return finish_scalar_sums_late(graph, out.sharding); });
  pass.nodes(graph.nodes.size());

  Recomputed again;
  const bool recomputes = request.recompute != RecomputeMode::kNone;
  if (recomputes) {
    again = pass("recompute", [&] { return recompute(graph, out.sharding, request.recompute); });
    pass.nodes(again.graph.nodes.size());
    pass("verify recompute", [&] { return verify(again.graph), 0; });
  }
  const Graph& played = recomputes ? again.graph : graph;
  const ShardingResult& layouts = recomputes ? again.sharding : out.sharding;

  out.local = pass("partition", [&] {
    return partition(played, layouts, request.mesh, request.links, request.rank,
                     request.dispatch, request.stages);
  });
  pass.nodes(out.local.graph.nodes.size());
  pass("verify local", [&] { return verify(out.local.graph), 0; });

  if (request.fusion) {
    for (const FusionPass& fusion : fusion_passes()) {
      const std::vector<std::string>& off = request.fusion_off;
      if (std::find(off.begin(), off.end(), fusion.name) != off.end()) continue;
      FusionReport report;
      out.local = pass(cat("fuse ", fusion.name), [&] { return fusion.run(out.local, report); });
      pass.nodes(out.local.graph.nodes.size());
      pass.fused(report);
    }
    pass("verify fused", [&] { return verify(out.local.graph), 0; });
  }

  out.plan = pass("lower", [&] {
    return lower(out.local, request.mesh, request.rank, lower_options(request));
  });
  pass.nodes(out.plan.slots.size());

  pass("schedule", [&] { return schedule(request, out.plan), 0; });
  pass.nodes(out.plan.slots.size());
  return out;
}

}  // namespace moetrain
