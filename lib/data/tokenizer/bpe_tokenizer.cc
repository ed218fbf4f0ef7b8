// Byte-level BPE from tokenizer.json: added tokens, pre-tokenizer, merges, decoding.
#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

std::vector<AddedToken> added_where(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : spec.added) {
    if (token.normalized == normalized) out.push_back(token);
  }
  return out;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(const TokenizerSpec& spec, const std::string& path)
      : model_(spec, path),
        pre_tokenizer_(spec.steps),
        raw_(added_where(spec, false)),
        normalized_(added_where(spec, true)),
        spaced_(!spec.byte_level_decoder) {
    check_ids(spec, path);
    for (const auto& [token, id] : spec.vocab) put(id, token, false);
    for (const AddedToken& token : spec.added) put(token.id, token.content, token.special);
  }

  void choose_eod(const std::string& name, const std::string& path) {
    static constexpr std::string_view kUsual[] = {"<|endoftext|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|eod|>",
                                                  "<|eot|>",       "</s>",                    "<eos>",           "<|im_end|>"};
    if (!name.empty()) {
      const auto it = id_of_.find(name);
      if (it == id_of_.end()) throw UserError({{path, cat("end-of-document token \"", name, "\" is not in the vocabulary")}});
      eod_ = it->second;
      return;
    }
    for (std::string_view usual : kUsual) {
      const auto it = id_of_.find(std::string(usual));
      if (it == id_of_.end()) continue;
      eod_ = it->second;
      return;
    }
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t eod() const override { return eod_; }
  std::string_view separator() const override { return spaced_ ? " " : ""; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    if (const size_t bad = utf8_find_invalid(text); bad != std::string_view::npos) {
      throw UserError(cat("text is not UTF-8: ill-formed at byte ", bad));
    }
    if (text.size() >= (size_t{1} << 31)) throw UserError(cat("a text of ", text.size(), " bytes is too long; split it below 2 GiB"));
    std::unique_ptr<Scratch> scratch = borrow();
    const auto token = [&](int64_t id) { ids.push_back(static_cast<int32_t>(id)); };
    raw_.each(
        text,
        [&](std::string_view stretch) {
          normalized_.each(
              stretch,
              [&](std::string_view plain) {
                pre_tokenizer_.each(plain, scratch->cut, [&](std::string_view piece) { model_.encode(piece, scratch->bpe, ids); });
              },
              token);
        },
        token);
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

  // The reference numbers added tokens by its own rule whatever the file says; here both must agree.
  void check_ids(const TokenizerSpec& spec, const std::string& path) {
    std::unordered_map<int64_t, std::string_view> owner;
    for (const auto& [token, id] : spec.vocab) {
      const auto [it, fresh] = owner.emplace(id, token);
      if (!fresh) throw UserError({{path, cat("model.vocab: id ", id, " belongs to \"", it->second, "\" and \"", token, "\"")}});
      id_of_.emplace(token, static_cast<int32_t>(id));
    }
    auto next = static_cast<int64_t>(spec.vocab.size());
    for (size_t i = 0; i < spec.added.size(); ++i) {
      const AddedToken& token = spec.added[i];
      const auto known = id_of_.find(token.content);
      const int64_t expected = known != id_of_.end() ? known->second : next;
      if (token.id != expected) {
        throw UserError({{path, cat("added_tokens[", i, "]: \"", token.content, "\" has id ", token.id, " but the reference would use ", expected)}});
      }
      if (known == id_of_.end()) {
        id_of_.emplace(token.content, static_cast<int32_t>(next++));
        if (const auto it = owner.find(token.id); it != owner.end()) {
          throw UserError({{path, cat("added_tokens[", i, "]: id ", token.id, " already belongs to \"", it->second, "\"")}});
        }
      }
    }
  }

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
  bool spaced_;
  int64_t eod_ = -1;
  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> id_of_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // as many as threads ever encoded at once
};

}  // namespace

std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path, const std::string& eod_token) {
  const TokenizerSpec spec = load_tokenizer_json(path);
  auto tokenizer = std::make_unique<BpeTokenizer>(spec, path);
  tokenizer->choose_eod(eod_token.empty() ? eos_token_beside(path) : eod_token, path);
  return tokenizer;
}

}  // namespace moetrain
