// A byte trie tried at every possible first byte; white space and word tests around a match.
#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

bool is_space(uint32_t code) { return contains(unicode_class('s'), code); }

// The reference's \w: Alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(uint32_t code) {
  const auto in = [&](char name) { return contains(unicode_class(name), code); };
  return in('L') || in('M') || (in('N') && !in('o')) || in('w');
}

// Start of the character that ends at `end`.
size_t before_character(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool word_before(std::string_view text, size_t at) {
  size_t length = 0;
  return at > 0 && is_word(utf8_decode(text, before_character(text, at), &length));
}

bool word_after(std::string_view text, size_t at) {
  size_t length = 0;
  return at < text.size() && is_word(utf8_decode(text, at, &length));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t t = 0; t < tokens_.size(); ++t) {
    const std::string& content = tokens_[t].content;
    if (content.empty()) continue;
    uint32_t node = 0;
    for (char c : content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = trie_[node].children;
      const auto it = std::find_if(children.begin(), children.end(),
                                   [&](const auto& e) { return e.first == byte; });
      if (it != children.end()) {
        node = it->second;
      } else {
        const auto fresh = static_cast<uint32_t>(trie_.size());
        children.emplace_back(byte, fresh);
        trie_.emplace_back();
        node = fresh;
      }
    }
    trie_[node].token = static_cast<int64_t>(t);
    starts_[static_cast<unsigned char>(content[0])] = true;
  }
}

bool AddedTokens::find(std::string_view text, size_t from, Match* match) const {
  if (trie_.size() == 1) return false;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    uint32_t node = 0;
    int64_t longest = -1;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      const auto& children = trie_[node].children;
      const auto it = std::find_if(children.begin(), children.end(),
                                   [&](const auto& e) { return e.first == byte; });
      if (it == children.end()) break;
      node = it->second;
      if (trie_[node].token >= 0) {
        longest = trie_[node].token;
        match->end = at + 1;
      }
    }
    if (longest < 0) continue;
    match->token = static_cast<size_t>(longest);
    match->begin = begin;
    match->next = match->end;
    const AddedToken& token = tokens_[match->token];
    match->accepted =
        !token.single_word || (!word_before(text, begin) && !word_after(text, match->end));
    for (size_t length = 0; token.rstrip && match->end < text.size(); match->end += length) {
      if (!is_space(utf8_decode(text, match->end, &length))) break;
    }
    return true;
  }
  return false;
}

size_t AddedTokens::widened_begin(std::string_view text, const Match& match, size_t done) const {
  size_t begin = match.begin;
  size_t length = 0;
  while (tokens_[match.token].lstrip && begin > 0) {
    const size_t before = before_character(text, begin);
    if (!is_space(utf8_decode(text, before, &length))) break;
    begin = before;
  }
  return std::max(begin, tokens_[match.token].lstrip ? done : begin);
}

}  // namespace moetrain
