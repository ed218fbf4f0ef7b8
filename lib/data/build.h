// `data build` and `data train-tokenizer`: text to .bin/.idx, text to a tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/corpus.h"
#include "data/indexed.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/tokenizer.h"

namespace moetrain {

/// Bytes of input done and in all; called from the calling thread, from time to time and at the
/// end.
using Progress = std::function<void(int64_t done, int64_t total)>;

struct BuildOptions {
  CorpusOptions corpus;
  std::string prefix;      ///< writes PREFIX.bin and PREFIX.idx; missing folders are made
  bool append_eod = true;  ///< the tokenizer's end-of-document id closes every document
  int threads = 0;         ///< 0: all cores
  Progress progress;
};

struct BuildReport {
  int64_t documents = 0, empty_documents = 0, tokens = 0, text_bytes = 0;
  double seconds = 0;
  TokenType type = TokenType::kI32;
  std::string text() const;
};

/// Tokenises in parallel over documents; the files do not depend on the number of threads.
/// Documents without text are left out and counted. On any failure (UserError for bad input)
/// nothing is left.
BuildReport build_dataset(const Tokenizer& tokenizer, const BuildOptions& options);

/// Learns a byte-level BPE from the corpus and writes `path`, a tokenizer.json. Returns what it
/// made, in one line.
std::string train_tokenizer(const CorpusOptions& corpus, const BpeTrainerOptions& options,
                            const std::string& path, const Progress& progress = {});

}  // namespace moetrain
