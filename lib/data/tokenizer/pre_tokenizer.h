// Cuts text into the pieces inside which BPE merges: the steps of a tokenizer.json, each on every
// piece of the one before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/json_io.h"
#include "data/tokenizer/regex.h"

namespace moetrain {

/// Const and thread-safe. Pieces of one step never see each other: a piece's end is the end of the
/// subject for look-ahead, which is why the steps are not one regular expression.
class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  /// Working memory of one thread.
  struct Scratch {
    RegexScratch regex;
  };

  /// Calls `piece(std::string_view)` for every piece of `text` (well-formed UTF-8) in order.
  template <class Piece>
  void each(std::string_view text, Scratch& scratch, Piece&& piece) const {
    run(0, text, scratch, piece);
  }

 private:
  struct Step {
    PreTokenizerStep spec;
    std::vector<Regex> regex;  // none for literals and prefixes
  };
  struct Span {
    size_t begin = 0, end = 0;
    bool match = false;
  };

  template <class Piece>
  void run(size_t at, std::string_view text, Scratch& scratch, Piece& piece) const {
    if (text.empty()) return;
    if (at == steps_.size()) {
      piece(text);
      return;
    }
    const Step& step = steps_[at];
    if (step.spec.kind == PreTokenizerStep::kPrefixSpace) {
      if (text.front() == ' ') return run(at + 1, text, scratch, piece);
      const std::string prefixed = " " + std::string(text);
      return run(at + 1, prefixed, scratch, piece);
    }
    if (step.spec.behavior == SplitBehavior::kIsolated) {  // the common case needs no list
      size_t done = 0;
      matches(step, text, scratch, [&](size_t begin, size_t end) {
        run(at + 1, text.substr(done, begin - done), scratch, piece);
        run(at + 1, text.substr(begin, end - begin), scratch, piece);
        done = end;
      });
      return run(at + 1, text.substr(done), scratch, piece);
    }
    for (const Span& span : spans(step, text, scratch)) {
      run(at + 1, text.substr(span.begin, span.end - span.begin), scratch, piece);
    }
  }

  template <class Found>
  void matches(const Step& step, std::string_view text, const Scratch& scratch,
               Found&& found) const {
    if (!step.spec.literal) return step.regex[0].each(text, scratch.regex, found);
    const std::string& word = step.spec.pattern;
    if (word.empty()) return;
    for (size_t at = text.find(word); at != std::string_view::npos;
         at = text.find(word, at + word.size())) {
      found(at, at + word.size());
    }
  }

  std::vector<Span> spans(const Step& step, std::string_view text, const Scratch& scratch) const;

  std::vector<Step> steps_;
};

}  // namespace moetrain
