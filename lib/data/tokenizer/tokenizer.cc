// The byte tokenizer and what all tokenizers share in decoding.
#include "data/tokenizer/tokenizer.h"

#include "base/error.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 257; }
  int64_t eod() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void append_bytes(int32_t id, bool skip_special, std::string& bytes) const override {
    if (id >= 0 && id < 256) bytes.push_back(static_cast<char>(id));
    if (id == 256 && !skip_special) bytes += "<|endoftext|>";
  }
};

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    const size_t before = bytes.size();
    append_bytes(id, skip_special, bytes);
    if (before > 0 && bytes.size() > before) bytes.insert(before, separator());
  }
  return utf8_lossy(bytes);
}

std::string StreamDecoder::push(int32_t id) {
  const size_t before = held_.size();
  tokenizer_.append_bytes(id, skip_special_, held_);
  if (held_.size() == before) return {};
  const size_t whole = held_.size() - utf8_unfinished_tail(held_);
  std::string text = utf8_lossy(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = utf8_lossy(held_);
  held_.clear();
  return text;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, const std::string& eod_token) {
  if (name == "bytes") {
    if (!eod_token.empty()) {
      throw UserError(cat("the bytes tokenizer has one end-of-document id, 256; eod token \"",
                          eod_token, "\" needs a tokenizer.json"));
    }
    return make_byte_tokenizer();
  }
  return open_bpe_tokenizer(name, eod_token);
}

}  // namespace moetrain
