// Tokens that are recognised as a whole in running text before anything else cuts it.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "data/json_io.h"

namespace moetrain {

/// A leftmost-longest matcher over the added tokens of one pass. Const and thread-safe.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Calls `between(text)` for the stretches without tokens and `token(id)` for each token, in
  /// order.
  template <class Between, class Token>
  void each(std::string_view text, Between&& between, Token&& token) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      Match match;
      if (!find(text, at, &match)) break;
      at = match.next;
      if (!match.accepted) continue;
      const size_t begin = widened_begin(text, match, done);
      if (begin > done) between(text.substr(done, begin - done));
      token(tokens_[match.token].id);
      done = match.end;
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  struct Match {
    size_t token = 0, begin = 0, end = 0, next = 0;
    bool accepted = false;
  };
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    int64_t token = -1;
  };
  bool find(std::string_view text, size_t from, Match* match) const;
  size_t widened_begin(std::string_view text, const Match& match, size_t done) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> trie_{Node{}};
  bool starts_[256] = {};
};

}  // namespace moetrain
