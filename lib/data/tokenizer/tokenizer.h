// Text to ids and back: what every tokenizer of this program offers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moetrain {

/// Const and thread-safe: one tokenizer serves all threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids are 0 .. vocab_size() - 1 (some may be unused).
  virtual int64_t vocab_size() const = 0;
  /// Id that ends a document, -1 when there is none.
  virtual int64_t eod() const = 0;
  /// Appends the ids of `text`. No special token is added; special tokens written in the text are
  /// recognised. Text is bytes with length: NUL is text. UserError on ill-formed UTF-8 (with the
  /// byte offset), except for byte tokenizers, which take any bytes.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Appends the bytes of one id, which may be part of a character. Unknown ids give nothing.
  virtual void append_bytes(int32_t id, bool skip_special, std::string& bytes) const = 0;
  /// What stands between the bytes of two tokens (empty for byte-level tokenizers).
  virtual std::string_view separator() const { return {}; }

  std::vector<int32_t> encode(std::string_view text) const {
    std::vector<int32_t> ids;
    encode(text, ids);
    return ids;
  }
  /// Whole text of `ids`; every maximal ill-formed part becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
};

/// Decodes ids as they come: holds bytes back until a character is whole.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  /// Text that became certain with this id, possibly none.
  std::string push(int32_t id);
  /// The rest: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;
};

/// 256 bytes and one end-of-document id, 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// `name` is "bytes" or the path of a Hugging Face tokenizer.json (byte-level BPE). `eod_token`
/// names the end-of-document token; when empty it is taken from eos_token in a
/// tokenizer_config.json beside the file, else from the usual names. UserError names what the file
/// has that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name,
                                          const std::string& eod_token = "");

}  // namespace moetrain
