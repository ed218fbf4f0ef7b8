// What a run would need and do on one rank, found by compiling it: memory, traffic, predicted time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/schedule/timetable.h"
#include "config/config.h"
#include "train/machine.h"
#include "train/session.h"

namespace moetrain {

/// Bytes of one rank.
struct PlanMemory {
  int64_t weights = 0;     ///< what the forward pass reads
  int64_t masters = 0;     ///< float32 weights beside them
  int64_t moments = 0;     ///< AdamW's two
  int64_t gradients = 0;   ///< accumulators
  int64_t other = 0;       ///< loads, loss sums
  int64_t ports = 0;       ///< inputs and outputs
  int64_t arena = 0;       ///< activations, planned offsets
  int64_t workspace = 0;   ///< scratch of the CPU's kernels
  int64_t packed = 0;      ///< weights kept as kernels like them
  int64_t rows = 0;        ///< routed token rows at balanced load
  int64_t rows_worst = 0;  ///< the same when every row that can arrive does
  int64_t total() const {
    return weights + masters + moments + gradients + other + ports + arena + workspace + packed +
           rows;
  }
};

/// Equal collectives of all layers together, as sent by the rank in one optimizer step.
struct TrafficLine {
  std::string name, op, group;
  int64_t ranks = 0, calls = 0, bytes = 0;
  bool inter_node = false;
  double seconds = 0;  ///< one after the other, without overlap
};

/// One interval of the predicted step.
struct TimedInstruction {
  std::string name;
  int lane = 0;
  double begin = 0, seconds = 0;
};

struct PlanTime {
  double step = 0;     ///< seconds of one optimizer step
  double compute = 0;  ///< busy seconds of the compute lane
  double exposed = 0;  ///< seconds the compute lane waits for transfers
  double bubble = 0;   ///< share of the step in which the rank waits for other stages; 0 without a pipeline
  double mfu = 0;
  double tokens_per_second = 0;
};

/// Neighbouring stages that hold the same kinds of layers, as predicted for the first of its like.
struct StageKind {
  int first = 0, last = 0;
  std::string holds;  ///< "3 dense + 1 MoE layers, embedding"
  double compute = 0, exposed = 0;  ///< as in PlanTime
  int64_t memory = 0;               ///< bytes of a rank, PlanMemory::total()
};

/// Compiles `config` (resolved and validated) for one rank. No device is touched.
class PlanInspection {
 public:
  PlanInspection(const Config& config, int rank, int64_t world, const Machine& machine);

  /// Compiles for the first rank of every other kind of stage too, and predicts the step of the whole
  /// pipeline from all of them, the same on every rank. Before it, every stage is taken to be as fast as
  /// this rank's.
  void include_stages();

  const Compiled& compiled() const { return compiled_; }
  const PlanMemory& memory() const { return memory_; }
  const PlanTime& time() const { return time_; }
  /// Empty unless include_stages() found several stages.
  const std::vector<StageKind>& stages() const { return kinds_; }
  const std::vector<TrafficLine>& traffic() const { return traffic_; }
  int64_t inter_node_bytes() const { return inter_bytes_; }
  int64_t intra_node_bytes() const { return intra_bytes_; }

  /// For people; every line one fact.
  std::string text() const;
  std::string json() const;
  /// Every node with its factors, who decided them, and every redistribution with its price.
  std::string explain() const;
  /// Ops whose layouts differ in `other`.
  std::string layout_diff(const PlanInspection& other) const;
  /// The predicted step as Chrome trace events.
  std::string trace() const;

 private:
  std::string stages_text() const;
  void measure_memory();
  void measure_traffic();
  void measure_time();
  PassTimes pass_times();
  /// The step in a pipeline whose stages have these passes; `busy`: seconds of the step that some of the
  /// stages are busy, the update included.
  void fit_pipeline(const std::vector<PassTimes>& passes,
                    const std::vector<std::pair<int, double>>& busy);
  void rate();
  double play(const Segment& segment, double start, bool record);
  std::vector<int64_t> runs_of_segments() const;

  const Config config_;
  const Machine machine_;
  int64_t world_;
  Mesh mesh_;
  Stages stages_;
  PipelineOrder order_ = PipelineOrder::k1F1B;
  int stage_ = 0;
  LinkModel links_;
  Graph graph_;
  Compiled compiled_;
  double compile_seconds_ = 0;
  PlanMemory memory_;
  PlanTime time_;
  double busy_ = 0;  ///< seconds of the step that the rank does not wait for other stages
  std::vector<StageKind> kinds_;
  std::vector<TrafficLine> traffic_;
  int64_t inter_bytes_ = 0, intra_bytes_ = 0;
  std::vector<TimedInstruction> timeline_;
};

/// What changes from `a` to `b`, one line per number.
std::string plan_diff(const PlanInspection& a, const PlanInspection& b);

/// "model.layers.12.mlp" -> "model.layers.*.mlp".
std::string layer_pattern(const std::string& name);

}  // namespace moetrain
