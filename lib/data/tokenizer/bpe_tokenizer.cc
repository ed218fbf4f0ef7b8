// Byte-level BPE from tokenizer.json: added tokens, pre-tokenizer, merges, decoding.
#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

std::vector<AddedToken> added_where(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : spec.added) {
    if (token.normalized != normalized) continue;
    out.push_back(token);
    if (normalized && spec.nfc) out.back().content = normalize_nfc(token.content);
  }
  return out;
}

TokenIds vocab_ids(const TokenizerSpec& spec, const std::string& path) {
  TokenIds ids;
  ids.reserve(spec.vocab.size() + spec.added.size());
  std::vector<const std::string*> owner;
  for (const auto& [token, id] : spec.vocab) {
    const auto at = static_cast<size_t>(id);
    if (at >= owner.size()) owner.resize(at + 1 + at / 2);
    if (owner[at] != nullptr) {
      throw UserError({{path, cat("model.vocab: id ", id, " belongs to \"", *owner[at], "\" and \"",
                                  token, "\"")}});
    }
    owner[at] = &token;
    ids.emplace(token, static_cast<int32_t>(id));
  }
  return ids;
}

// The reference numbers added tokens by its own rule whatever the file says; here both must agree.
TokenIds added_ids(const TokenizerSpec& spec, const std::string& path, const TokenIds& ids) {
  TokenIds added;
  int64_t last = -1;
  for (const auto& [token, id] : spec.vocab) last = std::max(last, id);
  auto next = static_cast<int64_t>(spec.vocab.size());
  for (size_t i = 0; i < spec.added.size(); ++i) {
    const AddedToken& token = spec.added[i];
    const auto known = ids.find(token.content);
    const auto before = added.find(token.content);
    const int64_t expected = known != ids.end()      ? known->second
                             : before != added.end() ? before->second
                                                     : next;
    if (token.id != expected) {
      throw UserError({{path, cat("added_tokens[", i, "]: \"", token.content, "\" has id ",
                                  token.id, " but the reference would use ", expected)}});
    }
    if (known != ids.end() || before != added.end()) continue;
    if (next <= last) {
      throw UserError(
          {{path, cat("added_tokens[", i, "]: id ", next,
                      " lies among the vocabulary's, which has gaps and goes to ", last)}});
    }
    added.emplace(token.content, static_cast<int32_t>(next++));
  }
  return added;
}

int64_t find_eod(const TokenIds& vocab, const TokenIds& added, const std::string& name,
                 const std::string& path) {
  static constexpr std::string_view kUsual[] = {"<|endoftext|>",   "<｜end▁of▁sentence｜>",
                                                "<|end_of_text|>", "<|eod|>",
                                                "<|eot|>",         "</s>",
                                                "<eos>",           "<|im_end|>"};
  const auto find = [&](std::string_view token) -> int64_t {
    if (const auto it = vocab.find(token); it != vocab.end()) return it->second;
    const auto it = added.find(token);
    return it != added.end() ? it->second : -1;
  };
  if (!name.empty()) {
    if (const int64_t id = find(name); id >= 0) return id;
    throw UserError({{path, cat("end-of-document token \"", name, "\" is not in the vocabulary")}});
  }
  for (std::string_view usual : kUsual) {
    if (const int64_t id = find(usual); id >= 0) return id;
  }
  return -1;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(const TokenizerSpec& spec, const TokenIds& vocab, int64_t eod,
               const std::string& path)
      : model_(spec, vocab, path),
        pre_tokenizer_(spec.steps),
        raw_(added_where(spec, false)),
        normalized_(added_where(spec, true)),
        nfc_(spec.nfc),
        spaced_(!spec.byte_level_decoder),
        eod_(eod) {
    for (const auto& [token, id] : spec.vocab) put(id, token, false);
    for (const AddedToken& token : spec.added) put(token.id, token.content, token.special);
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t eod() const override { return eod_; }
  std::string_view separator() const override { return spaced_ ? " " : ""; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    if (const size_t bad = utf8_find_invalid(text); bad != std::string_view::npos) {
      throw UserError(cat("text is not UTF-8: ill-formed at byte ", bad));
    }
    if (text.size() >= (size_t{1} << 31))
      throw UserError(cat("a text of ", text.size(), " bytes is too long; split it below 2 GiB"));
    std::unique_ptr<Scratch> scratch = borrow();
    const auto token = [&](int64_t id) { ids.push_back(static_cast<int32_t>(id)); };
    const auto piece = [&](std::string_view cut) { model_.encode(cut, scratch->bpe, ids); };
    const auto plain = [&](std::string_view rest) {
      pre_tokenizer_.each(rest, scratch->cut, piece);
    };
    const auto stretch = [&](std::string_view raw) {
      if (nfc_) return normalized_.each(normalize_nfc(raw), plain, token);
      normalized_.each(raw, plain, token);
    };
    raw_.each(text, stretch, token);
    give_back(std::move(scratch));
  }

  void append_bytes(int32_t id, bool skip_special, std::string& bytes) const override {
    if (id < 0 || id >= vocab_size()) return;
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (!(skip_special && token.special)) bytes += token.bytes;
  }

 private:
  struct Token {
    std::string bytes;
    bool special = false;
  };
  struct Scratch {
    PreTokenizer::Scratch cut;
    BpeModel::Scratch bpe;
  };

  void put(int64_t id, const std::string& token, bool special) {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = {spaced_ ? token : from_symbols(token), special};
  }

  std::unique_ptr<Scratch> borrow() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

  BpeModel model_;
  PreTokenizer pre_tokenizer_;
  AddedTokens raw_, normalized_;
  bool nfc_, spaced_;
  int64_t eod_;
  std::vector<Token> tokens_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // as many as threads ever encoded at once
};

}  // namespace

std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path,
                                              const std::string& eod_token) {
  const TokenizerSpec spec = load_tokenizer_json(path);
  TokenIds ids = vocab_ids(spec, path);
  const TokenIds added = added_ids(spec, path, ids);
  const int64_t eod =
      find_eod(ids, added, eod_token.empty() ? eos_token_beside(path) : eod_token, path);
  return std::make_unique<BpeTokenizer>(spec, ids, eod, path);
}

}  // namespace moetrain
