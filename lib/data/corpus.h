// Text files and JSONL as a stream of documents, each with its place for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace moetrain {

enum class TextFormat { kAuto, kText, kJsonl };  ///< auto: by .jsonl or .ndjson
/// kLine: every line that is not blank is a document.
enum class DocumentCut { kFile, kLine, kBlankLines, kSeparatorLine };

struct CorpusOptions {
  std::vector<std::string>
      inputs;  ///< files, or folders whose files are taken in order of their names
  TextFormat format = TextFormat::kAuto;
  std::string key = "text";              ///< JSONL: the field that holds the text
  DocumentCut cut = DocumentCut::kFile;  ///< plain text: what ends a document
  std::string separator;                 ///< kSeparatorLine: the whole line
};

/// Not yet decoded. `bytes` stays valid as long as the Corpus.
struct RawDocument {
  std::string_view bytes;
  size_t file = 0;
  int64_t line = 1;  ///< where it starts
  bool jsonl = false;
};

/// Opens (maps) every file first: all missing ones are named at once.
class Corpus {
 public:
  explicit Corpus(CorpusOptions options);
  /// The next document in order; false at the end. Lines of JSONL that are blank are no documents.
  bool next(RawDocument& document);
  int64_t total_bytes() const { return total_bytes_; }
  int64_t bytes_read() const { return done_bytes_ + static_cast<int64_t>(at_); }
  size_t files() const { return paths_.size(); }
  /// The text, checked: UserError with file and line for ill-formed UTF-8, malformed JSON or a
  /// missing key. `storage` may be used to hold it. Thread-safe.
  std::string_view text(const RawDocument& document, std::string& storage) const;

 private:
  std::string_view take_line();
  bool next_cut(RawDocument& document);
  bool is_jsonl(const std::string& path) const;

  CorpusOptions options_;
  std::vector<std::string> paths_;
  std::vector<MappedFile> maps_;
  int64_t total_bytes_ = 0, done_bytes_ = 0;
  size_t file_ = 0, at_ = 0;
  int64_t line_ = 1;
  bool fresh_ = true;
};

}  // namespace moetrain
