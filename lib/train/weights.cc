// Finding and loading weights.
#include "train/weights.h"

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "config/load.h"

namespace moetrain {

namespace {

namespace fs = std::filesystem;

/// A stored config describes the ranks it ran on; these let it run on others.
const std::vector<std::string> kAnyRanks = {"parallel.data=auto",
                                            "parallel.tensor=1",
                                            "parallel.context=1",
                                            "parallel.expert=1",
                                            "parallel.pipeline=1",
                                            "parallel.virtual_stages=1",
                                            "parallel.schedule=1f1b",
                                            "parallel.stage_layout=auto",
                                            "parallel.mesh={}",
                                            "parallel.shard=[]",
                                            "parallel.sequence_parallel=auto",
                                            "parallel.tp_extend_ep=auto",
                                            "parallel.ranks_per_node=auto",
                                            "compute.threads=auto"};

std::vector<std::string> with(std::vector<std::string> first,
                              const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

bool is_hf(const std::string& path) {
  return fs::exists(fs::path(path) / "config.json") &&
         !fs::exists(fs::path(path) / "manifest.json");
}

/// The tokenizer a checkpoint names, or the copy its run folder keeps when the original is gone.
std::string tokenizer_of(const CheckpointReader& reader) {
  const auto& metadata = reader.manifest().metadata;
  const auto named = metadata.find("tokenizer");
  if (named == metadata.end()) return "bytes";
  if (named->second == "bytes") return named->second;
  const fs::path run = fs::absolute(reader.folder()).parent_path().parent_path();
  if (fs::exists(run / "tokenizer.json")) return (run / "tokenizer.json").string();
  return named->second;
}

}  // namespace

WeightSource find_weights(const std::string& path, const std::string& config_file,
                          const std::vector<std::string>& sets) {
  WeightSource out;
  std::string from = path;
  if (!config_file.empty()) {
    out.config = load_config(config_file, sets);
    out.tokenizer = out.config.data.tokenizer;
    if (from.empty()) from = out.config.run.output_dir;
  }
  if (from.empty()) throw UserError("give --checkpoint PATH, or --config of the run");
  if (is_hf(from)) {
    out.hf = from;
    const std::string file = (fs::path(from) / "config.json").string();
    if (config_file.empty()) {
      out.config = config_from_hf(file, sets);
      const fs::path tokenizer = fs::path(from) / "tokenizer.json";
      out.tokenizer = fs::exists(tokenizer) ? tokenizer.string() : out.config.data.tokenizer;
      if (out.config.data.sequence_length == 0) out.config.data.sequence_length = 256;
      if (out.config.train.global_batch_size == 0) out.config.train.global_batch_size = 1;
    } else {
      out.config.model = load_hf_model(file);
    }
    return out;
  }
  std::vector<std::string> warnings;
  out.checkpoint = resolve_checkpoint(from, &warnings);
  for (const std::string& w : warnings) log_warning(w);
  if (config_file.empty()) {
    const CheckpointReader reader(out.checkpoint, false);
    out.config = parse_config(reader.metadata("config"), out.checkpoint + " (stored config)", ".",
                              with(kAnyRanks, sets));
    out.tokenizer = tokenizer_of(reader);
    out.config.data.tokenizer = out.tokenizer;
  }
  return out;
}

void load_weights(Session& session, const WeightSource& source) {
  if (!source.hf.empty()) {
    const HfFolder folder(source.hf);
    const auto table = published_table(session.config().model, DType::kBF16);
    folder.check(table, {"*rotary_emb.inv_freq"});
    const HfStates states(folder, table);
    session.load_parameters([&](const std::string& name, const Box& box, float* out) {
      states.read(name, box, DType::kF32, out);
    });
    return;
  }
  const CheckpointReader reader(source.checkpoint);
  std::vector<StateSpec> expected;
  for (const Parameter& p : session.parameters()) {
    expected.push_back({p.name, DType::kF32, p.shape});
    if (!p.trained || reader.find(first_moment_name(p.name)) == nullptr) continue;
    expected.push_back({first_moment_name(p.name), DType::kF32, p.shape});
    expected.push_back({second_moment_name(p.name), DType::kF32, p.shape});
  }
  reader.check(expected, false);
  session.load_parameters([&](const std::string& name, const Box& box, float* out) {
    reader.read(name, box, DType::kF32, out);
  });
}

std::vector<PublishedTensor> published_table(const ModelConfig& model, DType dtype) {
  std::vector<PublishedTensor> table;
  const std::vector<Parameter> params = parameters(model);
  const Parameter *embedding = nullptr, *head = nullptr;
  for (const Parameter& p : params) {
    if (p.name == "model.embed_tokens.weight") embedding = &p;
    if (p.name == "lm_head.weight") head = &p;
    // Computed with in float32, but published like the matrices.
    const bool wide = p.fp32 && p.name != "model.embed_tokens.weight";
    for (const PublishedSlice& t : p.published) {
      table.push_back({t.name, p.name, t.slice, t.shape, wide ? DType::kF32 : dtype, false});
    }
  }
  for (int64_t i = model.num_hidden_layers; i < model.total_layers(); ++i) {
    auto repeat = [&](const Parameter& p, const char* name) {
      const PublishedSlice& t = p.published.front();
      table.push_back({cat("model.layers.", i, ".", name), p.name, t.slice, t.shape, dtype, true});
    };
    if (embedding != nullptr) repeat(*embedding, "embed_tokens.weight");
    if (head != nullptr) repeat(*head, "shared_head.head.weight");
  }
  return table;
}

}  // namespace moetrain
