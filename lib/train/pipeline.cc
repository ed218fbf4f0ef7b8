// Stages from the configuration, and numbers between stages.
#include "train/pipeline.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/flops.h"
#include "train/stage_layout.h"

namespace moetrain {

Stages config_stages(const Config& config) {
  const ParallelConfig& p = config.parallel;
  Stages stages;
  stages.count = static_cast<int>(p.pipeline);
  if (stages.count == 1) return stages;
  stages.per_stage = static_cast<int>(p.chunks_per_rank());
  stages.folded = p.schedule == PipelineSchedule::kDualPipeV;
  return stages;
}

std::vector<int> config_chunks(const Config& config) {
  const int chunks = config_stages(config).chunks();
  std::vector<int64_t> counts;
  if (!config.parallel.stage_layout.is_auto() && chunks > 1) {
    counts = *config.parallel.stage_layout;
  } else {
    std::vector<double> flops =
        forward_flops_of_layers(config.model, config.data.sequence_length);
    const double tail = flops.back();
    flops.pop_back();
    // Folded, the first and the last chunk lie on one stage: each makes room for half of the tail.
    const bool folded = config_stages(config).folded;
    counts = balanced_layers(flops, folded ? tail / 2 : 0, folded ? tail / 2 : tail, chunks);
  }
  std::vector<int> out;
  for (int c = 0; c < chunks; ++c) out.insert(out.end(), counts[c], c);
  MT_CHECK(static_cast<int64_t>(out.size()) == config.model.num_hidden_layers, "layers of ", chunks,
           " chunks");
  out.insert(out.end(), config.model.num_nextn_predict_layers, chunks - 1);
  return out;
}

PipelineOrder config_order(const Config& config, const Graph& graph) {
  const bool updates = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& n) {
    return n.tag.phase == Phase::kUpdate;
  });
  if (!updates) return PipelineOrder::kForwardOnly;
  switch (config.parallel.schedule) {
    case PipelineSchedule::k1F1B: break;
    case PipelineSchedule::kFused1F1B: {
      // Pairs of micro-batches on one stage cost memory and only serve to hide transfers.
      const ParallelConfig& p = config.parallel;
      const bool pairs = p.pipeline > 1 || (p.overlap && p.stage_ranks() > 1);
      return pairs ? PipelineOrder::kFused1F1B : PipelineOrder::k1F1B;
    }
    case PipelineSchedule::kDualPipeV: return PipelineOrder::kDualPipeV;
  }
  return PipelineOrder::k1F1B;
}

std::vector<int> config_micro_batches(const Config& config) {
  const int64_t unit = config.train.micro_batch_size * *config.parallel.data;
  std::vector<int> counts{static_cast<int>(config.train.global_batch_size / unit)};
  for (const BatchRampStage& s : config.train.batch_ramp) {
    counts.push_back(static_cast<int>(s.global_batch_size / unit));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

PipeGroup::PipeGroup(Fabric& fabric, Device& device, int stages) : device_(device), stages_(stages) {
  if (stages == 1) return;
  const int stage_ranks = fabric.size() / stages;
  std::vector<int> ranks;
  for (int s = 0; s < stages; ++s) ranks.push_back(fabric.rank() % stage_ranks + s * stage_ranks);
  group_ = fabric.make_group(ranks, "pp");
}

PipeGroup::~PipeGroup() {
  if (buffer_ != nullptr) device_.release(buffer_);
}

std::vector<std::vector<std::byte>> PipeGroup::gather(const std::vector<std::byte>& mine) {
  if (stages_ == 1) return {mine};
  const size_t n = mine.size();
  if (capacity_ < n) {
    if (buffer_ != nullptr) device_.release(buffer_);
    buffer_ = device_.allocate((stages_ + 1) * n, "numbers of pipeline stages");
    capacity_ = n;
  }
  Lane& lane = device_.lane(kComputeLane);
  std::byte* all = buffer_ + n;
  device_.copy_in(buffer_, mine.data(), n, lane);
  group_->all_gather(buffer_, all, static_cast<int64_t>(n), lane);
  std::vector<std::vector<std::byte>> out(stages_, std::vector<std::byte>(n));
  for (int s = 0; s < stages_; ++s) device_.copy_out(out[s].data(), all + s * n, n, lane);
  lane.synchronize();
  return out;
}

UpdateNumbers::UpdateNumbers(const Graph& graph, const Stages& stages) {
  for (const NamedValue& o : graph.outputs) {
    const Node& node = graph.node(o.value);
    if (node.tag.phase != Phase::kUpdate || o.name.starts_with("grad.")) continue;
    const Type& type = graph.type(o.value);
    const size_t bytes = numel(type.shape) * size_of(type.dtype);
    items_[o.name] = {type, stages.stage_of(node.tag.stage), values_.size(), bytes};
    values_.resize(values_.size() + bytes);
  }
}

void UpdateNumbers::collect(const Executor& executor, PipeGroup& pipe) {
  std::vector<std::byte> mine(values_.size());
  for (const auto& [name, item] : items_) {
    if (!executor.has_output(name)) continue;
    executor.read(executor.output(name), mine.data() + item.offset, item.bytes);
  }
  const auto stages = pipe.gather(mine);
  for (const auto& [name, item] : items_) {
    std::memcpy(values_.data() + item.offset, stages.at(item.stage).data() + item.offset, item.bytes);
  }
}

double UpdateNumbers::scalar(const std::string& name) const {
  const Item& item = items_.at(name);
  std::vector<std::byte> bytes(values_.begin() + item.offset,
                               values_.begin() + item.offset + item.bytes);
  return get_element({bytes.data(), item.type.dtype, item.type.shape}, 0);
}

std::vector<int64_t> UpdateNumbers::integers(const std::string& name) const {
  const Item& item = items_.at(name);
  std::vector<int64_t> out(numel(item.type.shape));
  MT_CHECK(item.type.dtype == DType::kI64 && item.bytes == out.size() * sizeof(int64_t), name);
  std::memcpy(out.data(), values_.data() + item.offset, item.bytes);
  return out;
}

}  // namespace moetrain
