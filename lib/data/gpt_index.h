// Which tokens make sample k: documents shuffled, laid end to end over epochs, cut every S tokens,
// shuffled again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/split.h"

namespace moetrain {

/// Samples a run may plan for: sixteen times a 15-trillion-token run at 4096 tokens a sample.
inline constexpr int64_t kMostSamples = int64_t{1} << 36;

struct GptIndexOptions {
  int64_t sequence_length = 0;
  /// Samples wanted; -1 means one epoch.
  int64_t samples = -1;
  uint32_t seed = 1234;
  /// Keep a last sample shorter than S (validation only in the field); its tail is padded.
  bool keep_partial = false;
};

/// Megatron's GPT sample construction, bit-exact (`gpt_dataset.py`, `helpers.cpp`), built in memory
/// in the same way on every rank. A sample is S + 1 tokens; neighbours share one. Rows are kept
/// every kStride samples and walked from there: a sixteenth of the memory of the full table.
/// Example: lengths 5 3 9 4, order 2 0 3 1, S = 4 gives rows (0,0)(0,4)(0,8)(1,3)(2,2)(3,2).
class GptIndex {
 public:
  /// `length(i)` is the token count of sequence i; `range` holds the sequences to use.
  using Lengths = std::function<int64_t(int64_t)>;
  GptIndex(const Lengths& length, SequenceRange range, const GptIndexOptions& options);
  /// For tests: one given order of sequences, no shuffles.
  GptIndex(const Lengths& length, std::vector<int32_t> order, int64_t sequence_length);

  /// Position in the document order and token offset where row r starts; rows() = samples() + 1.
  struct Row {
    int64_t document = 0, offset = 0;
  };
  struct Part {
    int64_t sequence = 0, offset = 0, count = 0;
  };

  int64_t samples() const { return samples_; }
  int64_t epochs() const { return epochs_; }
  int64_t tokens_per_epoch() const { return tokens_per_epoch_; }
  bool last_epoch_apart() const { return last_epoch_apart_; }
  Row row(int64_t r) const;
  int64_t document_at(int64_t position) const {
    return first_ + order_[static_cast<size_t>(position)];
  }
  /// Row of sample k after the shuffle.
  int64_t shuffled(int64_t k) const {
    return wide_.empty() ? static_cast<int64_t>(shuffle_[static_cast<size_t>(k)])
                         : wide_[static_cast<size_t>(k)];
  }
  /// The pieces of sample k in order, S + 1 tokens together (fewer only in a kept partial one).
  /// Pieces without tokens are left out.
  void parts(int64_t k, std::vector<Part>& out) const;

 private:
  static constexpr int64_t kStride = 16;
  void build_rows(bool keep_partial);
  Row advance(Row row) const;

  Lengths length_;
  int64_t sequence_length_ = 0, first_ = 0;
  int64_t samples_ = 0, epochs_ = 1, tokens_per_epoch_ = 0;
  bool last_epoch_apart_ = false;
  std::vector<int32_t> order_;
  std::vector<Row> rows_;
  std::vector<uint32_t> shuffle_;
  std::vector<int64_t> wide_;
};

}  // namespace moetrain
