// Opening sources, planning the blend, and cutting samples into shifted inputs.
#include "data/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"

namespace moetrain {
namespace {

std::vector<Diagnostic> check_options(const SamplerOptions& o) {
  std::vector<Diagnostic> faults;
  const auto fault = [&](std::string message) { faults.push_back({"", std::move(message)}); };
  if (o.sequence_length < 1) fault(cat("data.sequence_length: ", o.sequence_length, " is below 1"));
  if (o.depths < 0 || o.depths >= std::max<int64_t>(o.sequence_length, 1)) {
    fault(cat("model.num_nextn_predict_layers: ", o.depths,
              " must lie in 0 to data.sequence_length - 1 = ", o.sequence_length - 1));
  }
  if (o.samples < 0) fault(cat("samples to draw: ", o.samples, " is negative"));
  if (o.samples > kMostSamples) {
    fault(cat("samples to draw: ", o.samples, " are more than the ", kMostSamples,
              " one run can index; lower train.steps or train.global_batch_size"));
  }
  if (o.seed > 0xffffffffu)
    fault(cat("data seed: ", o.seed, " is beyond 4294967295, the largest the sample order knows"));
  if (o.eod_mask_loss && o.eod < 0)
    fault("data.eod_mask_loss needs the tokenizer's end-of-document id");
  if (o.eod >= 0 && o.vocab_size > 0 && o.eod >= o.vocab_size) {
    fault(
        cat("end-of-document id ", o.eod, " is outside the vocabulary of ", o.vocab_size, " ids"));
  }
  if (o.parts.empty()) fault("data: no dataset is listed; give at least one prefix");
  if (o.parts.size() > 32767)
    fault(cat("data: ", o.parts.size(), " datasets are more than the format's 32767"));
  size_t weighted = 0;
  for (const BlendPart& part : o.parts) {
    if (!part.weight) continue;
    ++weighted;
    if (!std::isfinite(*part.weight) || *part.weight <= 0) {
      fault(cat("data: weight ", *part.weight, " of ", part.prefix,
                " is not a positive number; leave the dataset out instead"));
    }
  }
  if (weighted != 0 && weighted != o.parts.size()) {
    fault(cat("data: ", weighted, " of ", o.parts.size(),
              " datasets have a weight; give all of them one, or none"));
  }
  return faults;
}

}  // namespace

void Batch::resize(int64_t batch, int64_t seq, int64_t mtp_depths) {
  b = batch;
  s = seq;
  depths = mtp_depths;
  const auto one = static_cast<size_t>(b * s);
  const auto all = one * static_cast<size_t>(depths + 1);
  tokens.assign(all, 0);
  labels.assign(all, 0);
  valid.assign(all, 0.0f);
  pos.assign(one, 0);
  doc_start.assign(one, 0);
}

Sampler::Sampler(const SamplerOptions& options, Split split) : options_(options), split_(split) {
  if (auto faults = check_options(options_); !faults.empty()) throw UserError(std::move(faults));
  open_sources(split);
  if (sources_.size() == 1) {
    build_index(sources_[0], options_.samples);
    sources_[0].drawn = options_.samples;
  } else if (weights_[0].has_value()) {
    std::vector<double> weights;
    for (const auto& w : weights_) weights.push_back(*w);
    plan_weighted(weights);
  } else {
    plan_by_size();
  }
}

void Sampler::open_sources(Split split) {
  const std::string spec = options_.split;
  const auto shares = parse_split(!spec.empty()            ? spec
                                  : split == Split::kTrain ? "1"
                                  : split == Split::kTest  ? "0,0,1"
                                                           : "0,1,0");
  std::vector<Diagnostic> faults;
  for (const BlendPart& part : options_.parts) {
    try {
      Source source;
      IndexedOptions indexed;
      indexed.vocab_size = options_.vocab_size;
      source.data = std::make_unique<IndexedDataset>(part.prefix, indexed);
      for (const std::string& warning : source.data->warnings()) log_warning(warning);
      source.range = split_range(shares, source.data->sequences(), split);
      int64_t tokens = 0;
      for (int64_t i = source.range.begin; i < source.range.end; ++i)
        tokens += source.data->length(i);
      if (tokens == 0) {
        std::string why = cat("the ", name_of(split), " part is empty: ", source.range.size(),
                              " of ", source.data->sequences(), " sequences, 0 tokens",
                              spec.empty() ? "" : cat(" (data.split \"", spec, "\")"));
        if (split == Split::kTrain) {
          faults.push_back({part.prefix, std::move(why)});
        } else {
          log_warning(cat(part.prefix, ": ", why, "; left out"));
        }
        continue;
      }
      sources_.push_back(std::move(source));
      weights_.push_back(part.weight);
    } catch (const UserError& error) {
      faults.insert(faults.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
  if (faults.empty() && sources_.empty()) {
    faults.push_back({"", cat("data: the ", name_of(split), " part has no tokens in any dataset")});
  }
  if (!faults.empty()) throw UserError(std::move(faults));
}

void Sampler::plan_weighted(const std::vector<double>& raw) {
  const std::vector<double> once = normalized(raw);
  const std::vector<double> weights = normalized(once);  // the field does it twice; last bits move
  blend_ = Blend::greedy(weights, options_.samples);
  const std::vector<int64_t> taken = blend_.taken(options_.samples);
  for (size_t d = 0; d < sources_.size(); ++d) {
    sources_[d].drawn = taken[d];
    // The greedy choice can draw one more than the field reserves for a tiny weight.
    build_index(sources_[d], std::max(blend_request(options_.samples, once[d]), taken[d]));
  }
}

void Sampler::plan_by_size() {
  for (Source& source : sources_) {
    int64_t tokens = 0;
    for (int64_t i = source.range.begin; i < source.range.end; ++i)
      tokens += source.data->length(i);
    pass_sizes_.push_back(std::max<int64_t>(1, (tokens - 1) / options_.sequence_length));
  }
  blend_ = Blend::exhaustive(pass_sizes_);
  const int64_t pass = blend_.samples(), whole = options_.samples / pass;
  const std::vector<int64_t> rest = blend_.taken(options_.samples % pass);
  for (size_t d = 0; d < sources_.size(); ++d) {
    sources_[d].drawn = whole * pass_sizes_[d] + rest[d];
    build_index(sources_[d], (whole + (options_.samples % pass > 0)) * pass_sizes_[d]);
  }
}

void Sampler::build_index(Source& source, int64_t samples) {
  GptIndexOptions options;
  options.sequence_length = options_.sequence_length;
  options.samples = samples;
  options.seed = static_cast<uint32_t>(options_.seed);
  options.keep_partial = options_.keep_partial;
  const IndexedDataset* data = source.data.get();
  source.index = std::make_unique<GptIndex>([data](int64_t i) { return data->length(i); },
                                            source.range, options);
  MT_CHECK(source.index->samples() >= samples, source.index->samples(), " < ", samples);
}

Blend::Place Sampler::locate(int64_t sample) const {
  if (sample < 0 || sample >= options_.samples) {
    throw UserError(cat("sample ", sample, " of the ", name_of(split_),
                        " data was asked for, but the run was planned for ", options_.samples,
                        " samples; raise train.steps or train.tokens"));
  }
  if (sources_.size() == 1) return {0, sample};
  if (pass_sizes_.empty()) return blend_.at(sample);
  const int64_t pass = blend_.samples();
  const Blend::Place place = blend_.at(sample % pass);
  return {place.set, sample / pass * pass_sizes_[static_cast<size_t>(place.set)] + place.sample};
}

void Sampler::read(int64_t sample, Sample& out) const {
  const Blend::Place place = locate(sample);
  const Source& source = sources_[static_cast<size_t>(place.set)];
  std::vector<GptIndex::Part> parts;
  source.index->parts(place.sample, parts);
  const auto size = static_cast<size_t>(options_.sequence_length + 1);
  out.tokens.assign(size, 0);
  out.doc_start.assign(size, 0);
  int64_t at = 0;
  for (const GptIndex::Part& part : parts) {
    source.data->read(part.sequence, part.offset, part.count, out.tokens.data() + at);
    int64_t start = at;
    for (int64_t i = 0; i < part.count; ++i, ++at) {
      if (at > start && out.tokens[static_cast<size_t>(at - 1)] == options_.eod) start = at;
      out.doc_start[static_cast<size_t>(at)] = static_cast<int32_t>(start);
    }
  }
  out.present = at;
  for (auto i = static_cast<size_t>(at); i < size; ++i)
    out.doc_start[i] = i > 0 ? out.doc_start[i - 1] : 0;
}

// Depth k at position i has seen token i + k and predicts token i + k + 1: the depth-0 mask at i +
// k.
bool Sampler::is_valid(const Sample& sample, int64_t depth, int64_t i) const {
  const int64_t newest = i + depth;
  if (newest + 1 >= sample.present || newest >= options_.sequence_length) return false;
  return !(options_.eod_mask_loss && sample.tokens[static_cast<size_t>(newest)] == options_.eod);
}

void Sampler::fill(int64_t first, int64_t count, Batch& batch) const {
  const int64_t s = options_.sequence_length;
  batch.resize(count, s, options_.depths);
  Sample sample;
  for (int64_t row = 0; row < count; ++row) {
    read(first + row, sample);
    for (int64_t k = 0; k <= options_.depths; ++k) {
      const int64_t base = (k * count + row) * s;
      for (int64_t i = 0; i < s; ++i) {
        const auto to = static_cast<size_t>(base + i);
        batch.tokens[to] = sample.tokens[static_cast<size_t>(std::min(i + k, s))];
        batch.labels[to] = sample.tokens[static_cast<size_t>(std::min(i + k + 1, s))];
        batch.valid[to] = is_valid(sample, k, i) ? 1.0f : 0.0f;
      }
    }
    for (int64_t i = 0; i < s; ++i) {
      const auto to = static_cast<size_t>(row * s + i);
      batch.pos[to] = static_cast<int32_t>(i);
      batch.doc_start[to] = options_.document_mask ? sample.doc_start[static_cast<size_t>(i)] : 0;
    }
  }
}

bool Sampler::counts_are_fixed() const { return !options_.eod_mask_loss && !options_.keep_partial; }

std::vector<int64_t> Sampler::valid_counts(int64_t first, int64_t count) const {
  std::vector<int64_t> counts(static_cast<size_t>(options_.depths + 1), 0);
  Sample sample;
  for (int64_t k = 0; k <= options_.depths && counts_are_fixed(); ++k) {
    counts[static_cast<size_t>(k)] = count * (options_.sequence_length - k);
  }
  for (int64_t row = 0; row < count && !counts_are_fixed(); ++row) {
    read(first + row, sample);
    for (int64_t k = 0; k <= options_.depths; ++k) {
      for (int64_t i = 0; i < options_.sequence_length; ++i)
        counts[static_cast<size_t>(k)] += is_valid(sample, k, i);
    }
  }
  return counts;
}

uint64_t Sampler::fingerprint(int64_t first, int64_t count) const {
  uint64_t hash = hash_bytes("moetrain sample order 1");
  const auto add = [&](int64_t value) {
    hash = hash_bytes({reinterpret_cast<const char*>(&value), sizeof value}, hash);
  };
  for (const Source& source : sources_) add(static_cast<int64_t>(source.data->fingerprint()));
  for (int64_t i = first; i < first + count; ++i) {
    const Blend::Place place = locate(i);
    add(place.set);
    add(sources_[static_cast<size_t>(place.set)].index->shuffled(place.sample));
  }
  return hash;
}

std::string Sampler::describe() const {
  std::string text;
  for (const Source& source : sources_) {
    text += cat(text.empty() ? "" : "\n", source.data->prefix(), " (", name_of(split_),
                "): ", source.range.size(), " sequences, ", source.index->tokens_per_epoch(),
                " tokens, ", source.drawn, " samples drawn, ", source.index->epochs(),
                source.index->epochs() == 1 ? " epoch" : " epochs");
  }
  return text;
}

std::unique_ptr<Sampler> open_optional_sampler(const SamplerOptions& options, Split split) {
  if (options.parts.empty()) return nullptr;
  const auto shares = parse_split(options.split.empty() ? "1,1,1" : options.split);
  int64_t tokens = 0;
  for (const BlendPart& part : options.parts) {
    IndexedOptions indexed;
    indexed.verify_bytes = -1;
    const IndexedDataset data(part.prefix, indexed);
    const SequenceRange range = options.split.empty()
                                    ? SequenceRange{0, data.sequences()}
                                    : split_range(shares, data.sequences(), split);
    for (int64_t i = range.begin; i < range.end; ++i) tokens += data.length(i);
  }
  if (tokens == 0) {
    log_warning(cat("no ", name_of(split), " data: the part is empty",
                    options.split.empty() ? "" : cat(" (data.split \"", options.split, "\")"),
                    "; none will be taken"));
    return nullptr;
  }
  return std::make_unique<Sampler>(options, split);
}

}  // namespace moetrain
