// `moetrain data`: text to datasets and tokenizers.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "data/build.h"
#include "data/inspect.h"

namespace moetrain {

namespace {

CorpusOptions corpus_of(const DataCommand& c) {
  CorpusOptions corpus;
  corpus.inputs = c.inputs;
  corpus.format = c.format == "text"    ? TextFormat::kText
                  : c.format == "jsonl" ? TextFormat::kJsonl
                                        : TextFormat::kAuto;
  corpus.key = c.key;
  if (c.documents == "file") {
    corpus.cut = DocumentCut::kFile;
  } else if (c.documents == "blank-lines") {
    corpus.cut = DocumentCut::kBlankLines;
  } else {
    corpus.cut = DocumentCut::kSeparatorLine;
    corpus.separator = c.documents.substr(c.documents.find('=') + 1);
  }
  return corpus;
}

std::string tokenizer_name(const DataCommand& c) {
  if (!c.tokenizer.empty()) return c.tokenizer;
  if (!c.source.file.empty()) {
    return load_config(c.source.file, c.source.sets).data.tokenizer;
  }
  return "bytes";
}

/// A bar that redraws itself on a terminal and stays silent elsewhere.
Progress progress_bar(const char* what) {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [what](int64_t done, int64_t total) {
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    const std::string bar(static_cast<size_t>(part * 40), '=');
    std::fprintf(stderr, "\r%s [%-40s] %3.0f %% of %s", what, bar.c_str(), part * 100,
                 human_bytes(static_cast<double>(total)).c_str());
    if (done >= total) std::fputc('\n', stderr);
  };
}

}  // namespace

int run_data_build(const DataCommand& c) {
  const auto tokenizer = open_tokenizer(tokenizer_name(c), c.eod_token);
  BuildOptions options;
  options.corpus = corpus_of(c);
  options.prefix = c.output;
  options.append_eod = !c.no_eod;
  options.threads = c.threads;
  options.progress = progress_bar("tokens");
  std::cout << build_dataset(*tokenizer, options).text() << "\n";
  return 0;
}

int run_data_inspect(const DataCommand& c) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (!c.tokenizer.empty() || !c.source.file.empty()) {
    tokenizer = open_tokenizer(tokenizer_name(c), c.eod_token);
  }
  for (const std::string& prefix : c.inputs) {
    std::cout << inspect_dataset(prefix, tokenizer.get(), c.vocab_size);
  }
  return 0;
}

int run_data_train_tokenizer(const DataCommand& c) {
  BpeTrainerOptions options;
  if (c.vocab_size > 0) options.vocab_size = c.vocab_size;
  options.min_count = c.min_count;
  if (!c.eod_token.empty()) options.eod_token = c.eod_token;
  std::cout << train_tokenizer(corpus_of(c), options, c.output, progress_bar("words")) << "\n";
  return 0;
}

}  // namespace moetrain
