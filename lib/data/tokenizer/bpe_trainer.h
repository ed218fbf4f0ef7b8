// Learns a byte-level BPE vocabulary from text (Sennrich et al. 2016, GPT-2's bytes and word
// split).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/json_io.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace moetrain {

struct BpeTrainerOptions {
  int64_t vocab_size = 4096;  ///< bytes, merges and the end-of-document token together
  int64_t min_count = 2;      ///< a pair seen less often is not merged
  std::string eod_token = "<|endoftext|>";  ///< special, the last id
};

/// Deterministic: the result depends on the texts' words and counts only, not on their order. Words
/// longer than 256 bytes are not learnt from. Ids: 0..255 the bytes, then the merges, then the
/// end-of-document token.
class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);
  void add(std::string_view text);
  /// A complete tokenizer.json as plain data; fewer merges than asked for when the text gives no
  /// more.
  TokenizerSpec finish() const;

 private:
  BpeTrainerOptions options_;
  std::unique_ptr<PreTokenizer> words_;
  std::unique_ptr<PreTokenizer::Scratch> scratch_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace moetrain
