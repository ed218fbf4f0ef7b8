// Rules of pipeline stages, and of the user's own mesh axes and shard rows.
#include <algorithm>
#include <numeric>

#include "config/rules.h"

namespace moetrain {

namespace {

void check_stage_layout(Rules& r, int64_t chunks) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t layers = r.config.model.num_hidden_layers;
  const std::string count =
      p.schedule == PipelineSchedule::kDualPipeV ? "2 x pipeline" : "pipeline x virtual_stages";
  if (p.stage_layout.is_auto()) {
    if (chunks > layers)
      r.refuse("parallel.pipeline", "`parallel.pipeline`: ", count, " = ", chunks,
               " chunks need a layer each, but model.num_hidden_layers is ", layers, "; at most ",
               layers, " chunks");
    return;
  }
  const std::vector<int64_t>& layout = *p.stage_layout;
  const int64_t sum = std::accumulate(layout.begin(), layout.end(), int64_t{0});
  if (static_cast<int64_t>(layout.size()) != chunks)
    r.refuse("parallel.stage_layout", "`parallel.stage_layout`: has ", layout.size(),
             " entries, but there are ", count, " = ", chunks, " chunks");
  if (!layout.empty() && std::count(layout.begin(), layout.end() - 1, 0) > 0)
    r.refuse(
        "parallel.stage_layout", "`parallel.stage_layout`: [", join(layout, ", "),
        "] leaves a chunk without layers; only the last one, which has the head, may have none");
  if (sum != layers)
    r.refuse("parallel.stage_layout", "`parallel.stage_layout`: [", join(layout, ", "), "] places ",
             sum, " layers, but model.num_hidden_layers is ", layers,
             "; every layer is placed exactly once");
}

void check_micro_batches(Rules& r, const std::string& path, int64_t batch) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t unit = r.config.train.micro_batch_size * *p.data;
  if (batch % unit != 0) return;  // complained about already
  const int64_t count = batch / unit;
  if (p.schedule == PipelineSchedule::kDualPipeV && p.pipeline > 1 && count < 2 * p.pipeline)
    r.refuse(path, "`", path, "`: dualpipev needs at least 2 x pipeline = ", 2 * p.pipeline,
             " micro-batches, but global_batch_size / (micro_batch_size x data) = ", batch, " / ",
             unit, " = ", count, "; at least ", 2 * p.pipeline * unit, " sequences");
  if (p.virtual_stages > 1 && p.pipeline > 1 && count % p.pipeline != 0)
    r.refuse(path, "`", path, "`: interleaving (virtual_stages ", p.virtual_stages,
             ") needs a multiple of pipeline = ", p.pipeline,
             " micro-batches, but global_batch_size / (micro_batch_size x data) = ", batch, " / ",
             unit, " = ", count,
             "; nearest global_batch_size: ", nearest_multiples(batch, p.pipeline * unit));
}

/// Cumulative sizes from the fastest axis up; common atoms exist if all of them form one divisor
/// chain.
void add_chain(std::vector<int64_t>& chain, const std::vector<int64_t>& sizes_major_first) {
  int64_t product = 1;
  for (auto it = sizes_major_first.rbegin(); it != sizes_major_first.rend(); ++it)
    chain.push_back(product *= *it);
}

bool refines(std::vector<int64_t> chain) {
  std::sort(chain.begin(), chain.end());
  for (size_t i = 1; i < chain.size(); ++i)
    if (chain[i] % chain[i - 1] != 0) return false;
  return true;
}

bool is_name(const std::string& name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), good);
}

const std::vector<std::string> kAxes = {"dp", "cp", "tp", "edp", "ep"};

void check_shard_axes(Rules& r) {
  std::vector<std::string> known = kAxes;
  for (const auto& [name, size] : r.config.parallel.mesh) known.push_back(name);
  for (size_t i = 0; i < r.config.parallel.shard.size(); ++i) {
    const ShardRow& row = r.config.parallel.shard[i];
    const std::string path = cat("parallel.shard.", i);
    const auto visit = [&](const std::vector<std::string>& axes) {
      for (const std::string& axis : axes) {
        if (std::find(known.begin(), known.end(), axis) != known.end()) continue;
        const std::string near = nearest(axis, known);
        r.faults.push_back(
            {row.where, cat("`", path, "`: unknown axis `", axis, "`; ",
                            axis == "pp"   ? std::string("a pipeline stage is no axis of a layout")
                            : near.empty() ? cat("known: ", join(known, ", "))
                                           : cat("did you mean `", near, "`?"))});
      }
    };
    const auto visit_layout = [&](const LayoutSpec& layout) {
      for (const auto& axes : layout.dims) visit(axes);
      visit(layout.partial);
    };
    for (const auto& [letter, axes] : row.factors) visit(axes);
    for (const LayoutSpec& layout : row.in) visit_layout(layout);
    for (const LayoutSpec& layout : row.out) visit_layout(layout);
    visit_layout(row.layout);
  }
}

}  // namespace

void check_pipeline(Rules& r) {
  const ParallelConfig& p = r.config.parallel;
  if (p.virtual_stages > 1 && p.pipeline == 1)
    r.refuse("parallel.virtual_stages", "`parallel.virtual_stages: ", p.virtual_stages,
             "` needs parallel.pipeline > 1; set virtual_stages: 1");
  if (p.virtual_stages > 1 && p.schedule == PipelineSchedule::kDualPipeV)
    r.refuse("parallel.virtual_stages", "`parallel.virtual_stages: ", p.virtual_stages,
             "`: dualpipev always holds two chunks per rank; set virtual_stages: 1");
  check_stage_layout(r, p.pipeline * p.chunks_per_rank());
  check_micro_batches(r, "train.global_batch_size", r.config.train.global_batch_size);
  for (size_t i = 0; i < r.config.train.batch_ramp.size(); ++i)
    check_micro_batches(r, cat("train.batch_ramp.", i, ".global_batch_size"),
                        r.config.train.batch_ramp[i].global_batch_size);
}

void check_user_mesh(Rules& r) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t data = *p.data, ranks = data * p.context * p.tensor;
  check_shard_axes(r);
  if (data * p.context % p.expert != 0) return;  // complained about already
  const std::vector<int64_t> dense = {data, p.context, p.tensor};
  const std::vector<int64_t> expert = {p.expert_data(), p.expert, p.tensor};
  std::vector<int64_t> chain;
  add_chain(chain, dense);
  add_chain(chain, expert);
  if (!refines(chain))
    r.refuse("parallel.expert", "`parallel.expert`: data x context = ", data, " x ", p.context,
             " and edp x expert = ", p.expert_data(), " x ", p.expert,
             " have no common refinement: expert must divide context or be a multiple of it; "
             "nearest expert: ",
             p.context, " or ", data * p.context);
  if (p.mesh.empty()) return;
  std::vector<int64_t> sizes;
  for (const auto& [name, size] : p.mesh) {
    sizes.push_back(size);
    if (!is_name(name) || name == "pp" ||
        std::find(kAxes.begin(), kAxes.end(), name) != kAxes.end())
      r.refuse("parallel.mesh", "`parallel.mesh`: `", name, "` cannot name an axis",
               is_name(name) ? " of yours: moetrain uses that name" : "",
               "; take a word of letters, digits and _");
  }
  int64_t product = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) product = 0;
  if (product != ranks) {
    r.refuse("parallel.mesh", "`parallel.mesh`: the product of its sizes is ", product,
             ", but a pipeline stage has data x context x tensor = ", data, " x ", p.context, " x ",
             p.tensor, " = ", ranks, " ranks");
    return;
  }
  add_chain(chain, sizes);
  if (refines({chain.begin(), chain.begin() + 6}) && !refines(chain))
    r.refuse("parallel.mesh", "`parallel.mesh`: sizes ", join(sizes, " x "),
             " have no common refinement with data x context x tensor = ", join(dense, " x "),
             " and edp x expert x tensor = ", join(expert, " x "),
             "; counted from the last axis, their running products must divide one another");
}

}  // namespace moetrain
