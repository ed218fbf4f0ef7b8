// Pair counts kept up to date word by word; a heap whose entries are checked against the counts
// when they surface.
#include "data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "base/error.h"
#include "data/tokenizer/byte_alphabet.h"

namespace moetrain {
namespace {

constexpr size_t kLongestWord = 256;

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> words;  // where it occurs; may hold words that lost it, and repeats
};

struct Candidate {
  int64_t count = 0;
  uint64_t pair = 0;
  // Most frequent first; on ties the pair of older tokens.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

uint64_t pair_of(int32_t a, int32_t b) {
  return (static_cast<uint64_t>(a) << 32) | static_cast<uint32_t>(b);
}

class Learner {
 public:
  explicit Learner(std::vector<Word> words) : words_(std::move(words)) {
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const auto& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i)
        change(pair_of(symbols[i], symbols[i + 1]), words_[w].count, w);
    }
    for (const auto& [pair, state] : pairs_) heap_.push({state.count, pair});
    touched_.clear();
  }

  /// The most frequent pair that occurs at least `least` times.
  bool best(int64_t least, uint64_t* pair) {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (count < top.count) {  // stale: it comes back with its true count
        if (count >= least) heap_.push({count, top.pair});
        continue;
      }
      if (count < least) return false;
      *pair = top.pair;
      return true;
    }
    return false;
  }

  void merge(uint64_t pair, int32_t id) {
    const auto a = static_cast<int32_t>(pair >> 32), b = static_cast<int32_t>(pair & 0xffffffffu);
    std::vector<uint32_t> where = std::move(pairs_[pair].words);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    touched_.clear();
    for (uint32_t w : where) merge_in(w, a, b, id);
    pairs_.erase(pair);
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (uint64_t grown : touched_) {
      if (grown != pair) heap_.push({pairs_[grown].count, grown});
    }
  }

 private:
  void change(uint64_t pair, int64_t by, uint32_t word) {
    Pair& state = pairs_[pair];
    state.count += by;
    if (by <= 0) return;
    if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
    touched_.push_back(pair);
  }

  void merge_in(uint32_t w, int32_t a, int32_t b, int32_t id) {
    auto& symbols = words_[w].symbols;
    const int64_t count = words_[w].count;
    size_t out = 0;
    bool any = false;
    for (size_t i = 0; i < symbols.size(); ++i)
      any = any || (i + 1 < symbols.size() && symbols[i] == a && symbols[i + 1] == b);
    if (!any) return;
    delta_.clear();
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      delta_.emplace_back(pair_of(symbols[i], symbols[i + 1]), -count);
    for (size_t i = 0; i < symbols.size();) {
      const bool here = i + 1 < symbols.size() && symbols[i] == a && symbols[i + 1] == b;
      symbols[out++] = here ? id : symbols[i];
      i += here ? 2 : 1;
    }
    symbols.resize(out);
    for (size_t i = 0; i + 1 < out; ++i)
      delta_.emplace_back(pair_of(symbols[i], symbols[i + 1]), count);
    // Only pairs whose number in this word changed are touched.
    std::sort(delta_.begin(), delta_.end());
    for (size_t i = 0; i < delta_.size();) {
      int64_t net = 0;
      const uint64_t same = delta_[i].first;
      for (; i < delta_.size() && delta_[i].first == same; ++i) net += delta_[i].second;
      if (net != 0) change(same, net, w);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<uint64_t> touched_;
  std::vector<std::pair<uint64_t, int64_t>> delta_;
};

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainerOptions options)
    : options_(std::move(options)), scratch_(std::make_unique<PreTokenizer::Scratch>()) {
  if (options_.vocab_size < 257 || options_.vocab_size > 1000000) {
    throw UserError(cat("vocabulary size ", options_.vocab_size,
                        " must lie in 257 (256 bytes and the end-of-document token) to 1000000"));
  }
  if (options_.eod_token.empty()) throw UserError("the end-of-document token needs a name");
  PreTokenizerStep step;
  step.pattern = kGpt2Pattern;
  step.where = "word split";
  words_ = std::make_unique<PreTokenizer>(std::vector{step});
}

void BpeTrainer::add(std::string_view text) {
  std::string key;
  words_->each(text, *scratch_, [&](std::string_view piece) {
    if (piece.size() > kLongestWord) return;
    key.assign(piece);
    ++counts_[key];
  });
}

TokenizerSpec BpeTrainer::finish() const {
  std::vector<std::pair<std::string_view, int64_t>> sorted(counts_.begin(), counts_.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    Word word;
    word.count = count;
    for (char c : text) word.symbols.push_back(static_cast<unsigned char>(c));
    words.push_back(std::move(word));
  }
  TokenizerSpec spec;
  std::vector<std::string> tokens;
  std::unordered_map<std::string, int32_t> known;
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(byte_symbol(static_cast<unsigned char>(b)));
    known.emplace(tokens.back(), b);
    spec.vocab.emplace_back(tokens.back(), b);
  }
  Learner learner(std::move(words));
  uint64_t pair = 0;
  while (static_cast<int64_t>(tokens.size()) + 1 < options_.vocab_size &&
         learner.best(options_.min_count, &pair)) {
    const std::string &a = tokens[pair >> 32], &b = tokens[pair & 0xffffffffu];
    const auto fresh = static_cast<int32_t>(tokens.size());
    std::string joined = a + b;
    spec.merges.emplace_back(a, b);
    // Two ways to the same string share one id.
    const auto [it, is_new] = known.emplace(joined, fresh);
    learner.merge(pair, it->second);
    if (!is_new) continue;
    spec.vocab.emplace_back(joined, fresh);
    tokens.push_back(std::move(joined));
  }
  if (known.contains(options_.eod_token)) {
    throw UserError(cat("end-of-document token \"", options_.eod_token,
                        "\" is also a learnt token; choose another name"));
  }
  AddedToken eod;
  eod.id = static_cast<int64_t>(tokens.size());
  eod.content = options_.eod_token;
  eod.special = true;
  spec.added.push_back(eod);
  PreTokenizerStep step;
  step.pattern = kGpt2Pattern;
  step.where = "word split";
  spec.steps.push_back(step);
  return spec;
}

}  // namespace moetrain
