// From datasets to micro-batches: a pure function of (files, seed, blend, sample number), equal on
// every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/blend.h"
#include "data/gpt_index.h"
#include "data/indexed.h"

namespace moetrain {

/// One dataset of a blend. All entries carry a weight or none does (then each set is drawn in
/// proportion to its size). A prefix listed twice is two streams of the same order.
struct BlendPart {
  std::string prefix;
  std::optional<double> weight;
};

struct SamplerOptions {
  std::vector<BlendPart> parts;
  std::string split;            ///< "99,1,0"; empty: everything belongs to the asked part
  int64_t sequence_length = 0;  ///< S
  int64_t depths = 0;          ///< D, depths of multi-token prediction; inputs exist for k = 0 .. D
  int64_t samples = 0;         ///< samples the whole run will draw; sets repeat epochs as needed
  uint64_t seed = 1234;        ///< below 2^32, as in NumPy
  int64_t vocab_size = 0;      ///< ids are checked against it; 0: unknown
  int64_t eod = -1;            ///< id that ends a document; -1: none
  bool document_mask = false;  ///< attention stays inside documents: fills Batch::doc_start
  bool eod_mask_loss = false;  ///< no loss where the newest token seen is `eod`
  bool keep_partial = false;   ///< keep a last sample shorter than S; its tail is not valid
};

/// One micro-batch; every array is [b, s], depth after depth. tokens_k[i] = token i + k of the
/// sample, labels_k[i] = token i + k + 1, valid_k[i] = 1 where depth k has a loss at position i:
/// i < S - k and not masked. Entries that are not valid hold ids in range all the same.
struct Batch {
  int64_t b = 0, s = 0, depths = 0;
  std::vector<int32_t> tokens, labels;  ///< [D + 1, b, s]
  std::vector<float> valid;             ///< [D + 1, b, s], 1 or 0
  std::vector<int32_t> pos;             ///< [b, s]: 0 .. s-1
  /// [b, s]: position of the first token of the document that holds this token; 0 without
  /// document_mask. A document starts where a sequence of the dataset does and after every `eod`.
  std::vector<int32_t> doc_start;

  void resize(int64_t batch, int64_t seq, int64_t mtp_depths);
  int32_t* tokens_at(int64_t k) { return tokens.data() + k * b * s; }
  int32_t* labels_at(int64_t k) { return labels.data() + k * b * s; }
  float* valid_at(int64_t k) { return valid.data() + k * b * s; }
};

/// Const and thread-safe after construction. Nothing is cached on disk; no rank depends on another.
class Sampler {
 public:
  /// UserError when files are faulty, or when a set's training part has no sequence or no token.
  Sampler(const SamplerOptions& options, Split split);

  int64_t samples() const { return options_.samples; }
  /// Samples [first, first + count) in order. Numbers run on over the whole run: a resumed run goes
  /// on at its consumed_samples, whatever its layout. Throws UserError beyond samples().
  void fill(int64_t first, int64_t count, Batch& batch) const;
  /// Valid positions per depth 0 .. D over samples [first, first + count): the divisors of a global
  /// batch's losses, needed before its first forward. Reads tokens only when a mask depends on
  /// them.
  std::vector<int64_t> valid_counts(int64_t first, int64_t count) const;
  /// Hash over (files, options, order) of samples [first, first + count), for logs and resume
  /// checks.
  uint64_t fingerprint(int64_t first, int64_t count) const;
  /// One line per set: documents, tokens, epochs, samples drawn.
  std::string describe() const;

  /// The S + 1 tokens of one sample, and the first position of each token's document.
  struct Sample {
    std::vector<int32_t> tokens;
    std::vector<int32_t> doc_start;
    int64_t present = 0;  ///< tokens that exist; the rest of a kept partial sample is 0
  };
  void read(int64_t sample, Sample& out) const;

 private:
  struct Source {
    std::unique_ptr<IndexedDataset> data;
    std::unique_ptr<GptIndex> index;
    SequenceRange range;
    int64_t drawn = 0;
  };
  void open_sources(Split split);
  void plan_weighted(const std::vector<double>& weights);
  void plan_by_size();
  void build_index(Source& source, int64_t samples);
  Blend::Place locate(int64_t sample) const;
  bool counts_are_fixed() const;
  bool is_valid(const Sample& sample, int64_t depth, int64_t i) const;

  SamplerOptions options_;
  Split split_ = Split::kTrain;
  std::vector<Source> sources_;
  std::vector<std::optional<double>> weights_;
  std::vector<int64_t> pass_sizes_;  // by size: samples of one pass per set
  Blend blend_;
};

/// A sampler for validation or test, or null (with a warning that says why) when the part is empty.
std::unique_ptr<Sampler> open_optional_sampler(const SamplerOptions& options, Split split);

}  // namespace moetrain
