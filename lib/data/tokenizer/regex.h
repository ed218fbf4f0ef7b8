// Regular expressions of tokenizer files, run by PCRE2 with the reference's meaning of classes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace moetrain {

/// Reusable working memory of matching; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;
  struct Impl;
  Impl* get() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// A compiled pattern in the Oniguruma syntax of tokenizer.json. Const and thread-safe.
class Regex {
 public:
  /// Rewrites the pattern (see translate_pattern) and compiles it. `where` names the place in
  /// messages. UserError on a pattern that is broken or uses what the two libraries read
  /// differently.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// Calls `found(begin, end)` for every match of `text` (well-formed UTF-8) from left to right.
  template <class Found>
  void each(std::string_view text, const RegexScratch& scratch, Found&& found) const {
    size_t at = 0, begin = 0, end = 0;
    while (at <= text.size() && next(text, at, scratch, &begin, &end)) {
      found(begin, end);
      at = end > begin ? end : after_character(text, end);
    }
  }

 private:
  bool next(std::string_view text, size_t at, const RegexScratch& scratch, size_t* begin,
            size_t* end) const;
  static size_t after_character(std::string_view text, size_t at);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The pattern in PCRE2's syntax: \s, \S and \p{L|M|N|P|S} mean the tables of unicode.h whatever
/// Unicode version PCRE2 has. Other properties and escapes are refused by name.
std::string translate_pattern(const std::string& pattern, const std::string& where);

}  // namespace moetrain
