// Pipeline stages as the trainer sees them: from the configuration, and the numbers stages share.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/stages.h"
#include "compile/schedule/timetable.h"
#include "config/config.h"
#include "graph/graph.h"
#include "runtime/executor.h"

namespace moetrain {

/// Stages and chunks of a resolved configuration.
Stages config_stages(const Config& config);
/// Chunk of every layer, MTP layers (on the last chunk) behind the decoder's. stage_layout: auto makes the
/// chunk with the most matrix products as small as can be, those with the output matrix included.
std::vector<int> config_chunks(const Config& config);
/// The order of `graph` in the pipeline: forward passes only where it has no update.
PipelineOrder config_order(const Config& config, const Graph& graph);
/// Every number of micro-batches a step of this run can have.
std::vector<int> config_micro_batches(const Config& config);

/// The ranks that hold the same place in every stage, exchanging a few numbers.
class PipeGroup {
 public:
  /// Collective over those ranks where there are several stages.
  PipeGroup(Fabric& fabric, Device& device, int stages);
  ~PipeGroup();
  PipeGroup(const PipeGroup&) = delete;
  PipeGroup& operator=(const PipeGroup&) = delete;

  /// The bytes of every stage, in order; all give equally many. Blocking, collective.
  std::vector<std::vector<std::byte>> gather(const std::vector<std::byte>& mine);

 private:
  Device& device_;
  const int stages_;
  std::unique_ptr<Communicator> group_;
  std::byte* buffer_ = nullptr;
  size_t capacity_ = 0;
};

/// What the update leaves for the host (losses, norms, loads; no dumps), collected from all stages.
class UpdateNumbers {
 public:
  UpdateNumbers(const Graph& graph, const Stages& stages);
  /// Reads this stage's numbers and gets the others'. Collective over the pipe group.
  void collect(const Executor& executor, PipeGroup& pipe);

  bool has(const std::string& name) const { return items_.count(name) > 0; }
  double scalar(const std::string& name) const;
  std::vector<int64_t> integers(const std::string& name) const;

 private:
  struct Item {
    Type type;
    int stage = 0;
    size_t offset = 0, bytes = 0;
  };
  std::map<std::string, Item> items_;
  std::vector<std::byte> values_;
};

}  // namespace moetrain
