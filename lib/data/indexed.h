// The .bin/.idx token files of the field (Megatron's indexed dataset, version 1): reader and
// writer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "data/output_file.h"

namespace moetrain {

/// Element type codes of the .idx header; 6 and 7 (floats) exist in the format but hold no token
/// ids.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8
};

/// Bytes of one token, 0 for an unknown code.
int64_t size_of(TokenType type);
/// "uint16" and so on.
const char* name_of(TokenType type);
/// The field's rule: uint16 for vocabularies below 65500 ids, else int32.
TokenType token_type_for(int64_t vocab_size);

struct IndexedOptions {
  /// Ids must be below this; 0 checks only that they are non-negative and fit 31 bits.
  int64_t vocab_size = 0;
  /// All ids are checked at open when the .bin has at most this many bytes, else each at its use.
  int64_t verify_bytes = int64_t{1} << 28;
};

/// `PREFIX.bin` and `PREFIX.idx`, mapped and validated at open: magic, version, dtype, counts,
/// lengths, pointers, document boundaries, both file sizes. Extra bytes are refused. Faults throw
/// UserError with file, field, expected and found. Reading is const and thread-safe.
class IndexedDataset {
 public:
  explicit IndexedDataset(std::string prefix, IndexedOptions options = {});

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return boundaries_ - 1; }
  int64_t tokens() const { return tokens_; }
  /// Things that are allowed but odd, such as uint16 tokens for a vocabulary of 129280.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Tokens of sequence `i`.
  int64_t length(int64_t i) const;
  /// First sequence of document `d`; d = documents() gives sequences().
  int64_t document_begin(int64_t d) const;
  /// Copies tokens [offset, offset + count) of sequence `i`, each checked against the vocabulary.
  void read(int64_t i, int64_t offset, int64_t count, int32_t* out) const;
  /// Checks every token of every sequence.
  void verify_tokens() const;
  /// Hash of the index bytes and the size of the data: same files, same value.
  uint64_t fingerprint() const;

 private:
  void validate_header();
  void validate_arrays();
  [[noreturn]] void bad_token(int64_t sequence, int64_t position, int64_t id) const;
  int64_t pointer(int64_t i) const;

  std::string prefix_;
  IndexedOptions options_;
  MappedFile index_, data_;
  TokenType type_ = TokenType::kI32;
  int64_t sequences_ = 0, boundaries_ = 0, tokens_ = 0;
  std::vector<std::string> warnings_;
};

/// Writes both files under temporary names; finish() publishes .bin, then .idx. Without finish()
/// nothing remains.
class IndexedWriter {
 public:
  IndexedWriter(std::string prefix, TokenType type);
  /// One sequence that belongs to the current document. Ids that do not fit the type are refused.
  void add_sequence(std::span<const int32_t> tokens);
  void end_document();
  /// A document of one sequence.
  void add_document(std::span<const int32_t> tokens) {
    add_sequence(tokens);
    end_document();
  }
  /// All documents of another dataset of the same type, appended (merge).
  void append(const IndexedDataset& other);
  void finish();

 private:
  std::string prefix_;
  TokenType type_;
  OutputFile data_, index_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  std::vector<char> scratch_;
};

}  // namespace moetrain
