// Everything this room reads or writes as JSON: tokenizer.json, its config, lines of JSONL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moetrain {

/// How a Split treats its matches, as in tokenizer.json.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

/// One step of the pre-tokenizer, applied to every piece of the step before.
struct PreTokenizerStep {
  enum Kind { kSplit, kPrefixSpace } kind = kSplit;
  std::string pattern;  ///< Oniguruma syntax, or literal text
  bool literal = false;
  bool invert = false;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  std::string where;  ///< place in the file, for messages
};

struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool special = false, normalized = false, single_word = false, lstrip = false, rstrip = false;
};

/// A tokenizer.json as plain data; only byte-level BPE is let through.
struct TokenizerSpec {
  std::vector<std::pair<std::string, int64_t>> vocab;       ///< token (byte alphabet) and id
  std::vector<std::pair<std::string, std::string>> merges;  ///< by rank
  std::vector<AddedToken> added;
  std::vector<PreTokenizerStep> steps;
  bool ignore_merges = false;
  bool nfc = false;                ///< normalizer NFC
  bool byte_level_decoder = true;  ///< false: tokens as written, a space between them
};

/// GPT-2's split of text into words, as ByteLevel with use_regex applies it.
extern const char kGpt2Pattern[];

/// Reads and checks the file. UserError names file, place and what is wrong or not supported.
TokenizerSpec load_tokenizer_json(const std::string& path);
/// The file's text for `spec` whose steps are one GPT-2 ByteLevel (what our own trainer makes).
std::string dump_tokenizer_json(const TokenizerSpec& spec);
/// eos_token of tokenizer_config.json in the same folder, or "".
std::string eos_token_beside(const std::string& tokenizer_path);

/// The string under `key` of one JSONL line. False with a reason in `fault` when there is none.
bool json_text(std::string_view line, const std::string& key, std::string& text,
               std::string& fault);

}  // namespace moetrain
