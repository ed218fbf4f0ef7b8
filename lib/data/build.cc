// Rounds of documents: gathered in order, tokenised by all threads, written in order.
#include "data/build.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <thread>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr size_t kRoundBytesPerThread = size_t{4} << 20;
constexpr size_t kRoundDocuments = size_t{1} << 16;

struct Work {
  RawDocument document;
  std::vector<int32_t> ids;
  size_t text_bytes = 0;
};

// Documents are handed out in ascending order, so the lowest failing one is the same whatever the
// threads.
void tokenize(const Tokenizer& tokenizer, const Corpus& corpus, bool append_eod, size_t threads,
              std::vector<Work>& round) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::vector<std::exception_ptr> faults(threads);
  std::vector<size_t> failed(threads, std::numeric_limits<size_t>::max());
  const auto run = [&](size_t thread) {
    std::string storage;
    while (!stop) {
      const size_t i = next++;
      if (i >= round.size()) return;
      try {
        const std::string_view text = corpus.text(round[i].document, storage);
        round[i].text_bytes = text.size();
        tokenizer.encode(text, round[i].ids);
        if (append_eod && !text.empty())
          round[i].ids.push_back(static_cast<int32_t>(tokenizer.eod()));
      } catch (...) {
        faults[thread] = std::current_exception();
        failed[thread] = i;
        stop = true;
      }
    }
  };
  std::vector<std::thread> crew;
  for (size_t t = 1; t < threads; ++t) crew.emplace_back(run, t);
  run(0);
  for (std::thread& member : crew) member.join();
  const size_t first =
      static_cast<size_t>(std::min_element(failed.begin(), failed.end()) - failed.begin());
  if (faults[first]) std::rethrow_exception(faults[first]);
}

void make_parent(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) throw UserError({{parent.string(), cat("cannot make the folder: ", error.message())}});
}

}  // namespace

std::string BuildReport::text() const {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << documents << " documents, " << tokens << " tokens ("
      << name_of(type) << ") from " << human_bytes(static_cast<double>(text_bytes))
      << " of text in " << seconds << " s";
  if (tokens > 0)
    out << ", " << std::setprecision(2)
        << static_cast<double>(text_bytes) / static_cast<double>(tokens) << " bytes per token";
  if (empty_documents > 0) out << "; " << empty_documents << " empty documents left out";
  return out.str();
}

BuildReport build_dataset(const Tokenizer& tokenizer, const BuildOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.append_eod && tokenizer.eod() < 0) {
    throw UserError(
        "the tokenizer has no known end-of-document token; name it, or build without appending it");
  }
  if (options.prefix.empty()) throw UserError("data build: no output prefix is given");
  Corpus corpus(options.corpus);
  const size_t threads = options.threads > 0 ? static_cast<size_t>(options.threads)
                                             : std::max(1u, std::thread::hardware_concurrency());
  BuildReport report;
  report.type = token_type_for(tokenizer.vocab_size());
  make_parent(options.prefix);
  IndexedWriter writer(options.prefix, report.type);
  std::vector<Work> round;
  for (bool more = true; more;) {
    round.clear();
    for (size_t bytes = 0;
         bytes < kRoundBytesPerThread * threads && round.size() < kRoundDocuments;) {
      Work work;
      more = corpus.next(work.document);
      if (!more) break;
      bytes += work.document.bytes.size();
      round.push_back(std::move(work));
    }
    tokenize(tokenizer, corpus, options.append_eod, threads, round);
    for (const Work& work : round) {
      report.text_bytes += static_cast<int64_t>(work.text_bytes);
      if (work.text_bytes == 0) {
        ++report.empty_documents;
        continue;
      }
      writer.add_document(work.ids);
      report.tokens += static_cast<int64_t>(work.ids.size());
      ++report.documents;
    }
    if (options.progress) options.progress(corpus.bytes_read(), corpus.total_bytes());
  }
  if (report.documents == 0)
    throw UserError(cat("data build: no documents with text in ", corpus.files(), " files"));
  writer.finish();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string train_tokenizer(const CorpusOptions& corpus_options, const BpeTrainerOptions& options,
                            const std::string& path, const Progress& progress) {
  Corpus corpus(corpus_options);
  BpeTrainer trainer(options);
  RawDocument document;
  std::string storage;
  int64_t shown = 0;
  constexpr int64_t kShowEvery = int64_t{1} << 22;
  while (corpus.next(document)) {
    trainer.add(corpus.text(document, storage));
    if (progress && corpus.bytes_read() - shown >= kShowEvery) {
      shown = corpus.bytes_read();
      progress(shown, corpus.total_bytes());
    }
  }
  const TokenizerSpec spec = trainer.finish();
  make_parent(path);
  OutputFile out(path);
  out.write(dump_tokenizer_json(spec));
  out.commit();
  if (progress) progress(corpus.total_bytes(), corpus.total_bytes());
  const size_t size = spec.vocab.size() + spec.added.size();
  std::string line = cat(path, ": ", size, " ids, ", spec.merges.size(), " merges");
  if (static_cast<int64_t>(size) < options.vocab_size)
    line += cat("; the corpus gave fewer than the ", options.vocab_size, " asked for");
  return line;
}

}  // namespace moetrain
