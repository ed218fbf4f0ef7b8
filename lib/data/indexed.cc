// Reading and writing .bin/.idx; the index starts at byte 34, so nothing in it is aligned.
#include "data/indexed.h"

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/random.h"

namespace moetrain {
namespace {

constexpr unsigned char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kHeader = 34;
constexpr int64_t kI32Max = std::numeric_limits<int32_t>::max();

template <class T>
T load(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Index of the first id outside [0, limit), or count; also widens to int32.
template <class T>
int64_t copy_ids(const unsigned char* from, int64_t count, int64_t limit, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = load<T>(from + i * static_cast<int64_t>(sizeof(T)));
    if (id < 0 || id >= limit) return i;
    if (out != nullptr) out[i] = static_cast<int32_t>(id);
  }
  return count;
}

int64_t copy_ids(TokenType type, const unsigned char* from, int64_t count, int64_t limit,
                 int32_t* out) {
  switch (type) {
    case TokenType::kU8:
      return copy_ids<uint8_t>(from, count, limit, out);
    case TokenType::kI8:
      return copy_ids<int8_t>(from, count, limit, out);
    case TokenType::kI16:
      return copy_ids<int16_t>(from, count, limit, out);
    case TokenType::kI32:
      return copy_ids<int32_t>(from, count, limit, out);
    case TokenType::kI64:
      return copy_ids<int64_t>(from, count, limit, out);
    case TokenType::kU16:
      return copy_ids<uint16_t>(from, count, limit, out);
    default:
      return 0;
  }
}

int64_t load_id(TokenType type, const unsigned char* at) {
  switch (type) {
    case TokenType::kU8:
      return load<uint8_t>(at);
    case TokenType::kI8:
      return load<int8_t>(at);
    case TokenType::kI16:
      return load<int16_t>(at);
    case TokenType::kI32:
      return load<int32_t>(at);
    case TokenType::kI64:
      return load<int64_t>(at);
    default:
      return load<uint16_t>(at);
  }
}

int64_t largest_id(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return 255;
    case TokenType::kI8:
      return 127;
    case TokenType::kI16:
      return 32767;
    case TokenType::kU16:
      return 65535;
    default:
      return kI32Max;
  }
}

MappedFile open_part(const std::string& prefix, const char* suffix) {
  const std::string path = prefix + suffix;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const bool has_suffix = prefix.ends_with(".bin") || prefix.ends_with(".idx");
    throw UserError({{path, has_suffix ? "no such file; give the prefix without .bin or .idx"
                                       : "no such file; `moetrain data build` writes it"}});
  }
  return MappedFile(path);
}

}  // namespace

int64_t size_of(TokenType type) {
  constexpr int64_t kSizes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  const auto code = static_cast<size_t>(type);
  return code < std::size(kSizes) ? kSizes[code] : 0;
}

const char* name_of(TokenType type) {
  constexpr const char* kNames[] = {"unknown", "uint8",   "int8",    "int16", "int32",
                                    "int64",   "float64", "float32", "uint16"};
  const auto code = static_cast<size_t>(type);
  return code < std::size(kNames) ? kNames[code] : kNames[0];
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

IndexedDataset::IndexedDataset(std::string prefix, IndexedOptions options)
    : prefix_(std::move(prefix)), options_(options) {
  index_ = open_part(prefix_, ".idx");
  data_ = open_part(prefix_, ".bin");
  validate_header();
  validate_arrays();
  if (options_.vocab_size > largest_id(type_) + 1) {
    warnings_.push_back(cat(prefix_, ".idx: tokens are ", name_of(type_), " (ids up to ",
                            largest_id(type_), ") but the vocabulary has ", options_.vocab_size,
                            " ids: larger ids would have been wrapped when the file was written"));
  }
  if (static_cast<int64_t>(data_.size()) <= options_.verify_bytes) verify_tokens();
}

void IndexedDataset::validate_header() {
  const std::string path = prefix_ + ".idx";
  const auto refuse = [&](std::string message) { throw UserError({{path, std::move(message)}}); };
  const auto size = static_cast<int64_t>(index_.size());
  const int64_t with_magic = std::min<int64_t>(size, sizeof kMagic);
  if (size > 0 && std::memcmp(index_.data(), kMagic, static_cast<size_t>(with_magic)) != 0) {
    refuse("magic: expected \"MMIDIDX\\0\\0\", found other bytes; this is not an indexed dataset");
  }
  if (size < kHeader) refuse(cat("header: expected at least ", kHeader, " bytes, found ", size));
  const auto version = load<uint64_t>(index_.data() + 9);
  if (version != 1) refuse(cat("version: expected 1, found ", version));
  const int code = index_.data()[17];
  type_ = static_cast<TokenType>(code);
  if (size_of(type_) == 0) refuse(cat("dtype code: expected 1 to 8, found ", code));
  if (type_ == TokenType::kF32 || type_ == TokenType::kF64) {
    refuse(cat("dtype code: ", code, " (", name_of(type_),
               ") holds no token ids; expected an integer type"));
  }
  const auto sequences = load<uint64_t>(index_.data() + 18);
  const auto boundaries = load<uint64_t>(index_.data() + 26);
  const auto room = static_cast<uint64_t>(size - kHeader);
  if (sequences > room / 12) {
    refuse(cat("sequence count: ", sequences, " sequences need more bytes than the file's ", size));
  }
  if (boundaries == 0) refuse("document count: expected at least 1 boundary, found 0");
  if (boundaries > room / 8) {
    refuse(
        cat("document count: ", boundaries, " boundaries need more bytes than the file's ", size));
  }
  sequences_ = static_cast<int64_t>(sequences);
  boundaries_ = static_cast<int64_t>(boundaries);
  const int64_t expected = kHeader + 12 * sequences_ + 8 * boundaries_;
  if (size != expected) {
    const bool modes = size == expected + sequences_;
    refuse(cat("file size: expected ", expected, " bytes for ", sequences_, " sequences and ",
               boundaries_, " boundaries, found ", size,
               modes ? "; multimodal modes are not supported" : ""));
  }
}

void IndexedDataset::validate_arrays() {
  const std::string path = prefix_ + ".idx";
  const auto refuse = [](const std::string& where, std::string message) {
    throw UserError({{where, std::move(message)}});
  };
  const int64_t width = size_of(type_);
  int64_t expected = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t tokens = length(i);
    if (tokens < 0)
      refuse(path, cat("length of sequence ", i, ": expected 0 or more, found ", tokens));
    if (pointer(i) != expected) {
      refuse(path, cat("pointer of sequence ", i, ": expected ", expected,
                       " (running sum of lengths times ", width, " bytes), found ", pointer(i)));
    }
    expected +=
        tokens * width;  // at most 2^60 sequences of 2^31 tokens: the file size bounds it far below
  }
  tokens_ = expected / width;
  int64_t last = 0;
  for (int64_t d = 0; d < boundaries_; ++d) {
    const int64_t at = document_begin(d);
    if (d == 0 && at != 0) refuse(path, cat("document boundary 0: expected 0, found ", at));
    if (at < last)
      refuse(path, cat("document boundary ", d, ": expected at least ", last, ", found ", at));
    last = at;
  }
  if (last != sequences_) {
    refuse(path, cat("last document boundary: expected ", sequences_,
                     " (the number of sequences), found ", last));
  }
  if (static_cast<int64_t>(data_.size()) != expected) {
    refuse(prefix_ + ".bin",
           cat("file size: expected ", expected, " bytes (", tokens_, " tokens of ", width,
               " bytes, from ", path, "), found ", data_.size()));
  }
}

int64_t IndexedDataset::length(int64_t i) const {
  return load<int32_t>(index_.data() + kHeader + 4 * i);
}

int64_t IndexedDataset::pointer(int64_t i) const {
  return load<int64_t>(index_.data() + kHeader + 4 * sequences_ + 8 * i);
}

int64_t IndexedDataset::document_begin(int64_t d) const {
  return load<int64_t>(index_.data() + kHeader + 12 * sequences_ + 8 * d);
}

void IndexedDataset::bad_token(int64_t sequence, int64_t position, int64_t id) const {
  int64_t low = 0, high = boundaries_ - 1;  // last boundary that is <= sequence
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= sequence ? low : high) = middle;
  }
  const std::string limit = options_.vocab_size > 0
                                ? cat("the vocabulary has ", options_.vocab_size, " ids")
                                : cat("ids lie in 0 to ", kI32Max);
  throw UserError(
      {{prefix_ + ".bin",
        cat("document ", low, ", sequence ", sequence, ", position ", position, ": token id ", id,
            " but ", limit,
            "; the data and the tokenizer or model.vocab_size do not belong together")}});
}

void IndexedDataset::read(int64_t i, int64_t offset, int64_t count, int32_t* out) const {
  MT_CHECK(i >= 0 && i < sequences_ && offset >= 0 && count >= 0 && offset + count <= length(i),
           "sequence ", i, " offset ", offset, " count ", count);
  const int64_t limit = options_.vocab_size > 0 ? options_.vocab_size : kI32Max + 1;
  const unsigned char* from = data_.data() + pointer(i) + offset * size_of(type_);
  const int64_t good = copy_ids(type_, from, count, limit, out);
  if (good != count) bad_token(i, offset + good, load_id(type_, from + good * size_of(type_)));
}

void IndexedDataset::verify_tokens() const {
  if (options_.vocab_size > largest_id(type_) &&
      (type_ == TokenType::kU8 || type_ == TokenType::kU16))
    return;
  for (int64_t i = 0; i < sequences_; ++i) read(i, 0, length(i), nullptr);
}

uint64_t IndexedDataset::fingerprint() const {
  const uint64_t hash = hash_bytes(index_.text());
  const uint64_t size = data_.size();
  return hash_bytes({reinterpret_cast<const char*>(&size), sizeof size}, hash);
}

IndexedWriter::IndexedWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(type), data_(prefix_ + ".bin"), index_(prefix_ + ".idx") {
  MT_CHECK(size_of(type) > 0 && type != TokenType::kF32 && type != TokenType::kF64, name_of(type));
}

void IndexedWriter::add_sequence(std::span<const int32_t> tokens) {
  if (static_cast<int64_t>(tokens.size()) > kI32Max) {
    throw UserError({{prefix_ + ".bin",
                      cat("a sequence of ", tokens.size(),
                          " tokens is longer than the format's 2147483647; split the document")}});
  }
  const auto width = static_cast<size_t>(size_of(type_));
  scratch_.resize(tokens.size() * width);
  const int64_t limit = largest_id(type_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t id = tokens[i];
    if (id < 0 || id > limit) {
      throw UserError({{prefix_ + ".bin", cat("token id ", id, " does not fit ", name_of(type_))}});
    }
    std::memcpy(scratch_.data() + i * width, &id,
                width);  // little endian: the low bytes come first
  }
  data_.write(scratch_.data(), scratch_.size());
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
}

void IndexedWriter::end_document() { boundaries_.push_back(static_cast<int64_t>(lengths_.size())); }

void IndexedWriter::append(const IndexedDataset& other) {
  if (other.type() != type_) {
    throw UserError(
        {{other.prefix() + ".idx", cat("tokens are ", name_of(other.type()), ", the output's are ",
                                       name_of(type_), "; merging needs equal types")}});
  }
  std::vector<int32_t> tokens;
  for (int64_t d = 0; d < other.documents(); ++d) {
    for (int64_t i = other.document_begin(d); i < other.document_begin(d + 1); ++i) {
      tokens.resize(static_cast<size_t>(other.length(i)));
      other.read(i, 0, other.length(i), tokens.data());
      add_sequence(tokens);
    }
    end_document();
  }
}

void IndexedWriter::finish() {
  index_.write(kMagic, sizeof kMagic);
  const uint64_t counts[] = {1, lengths_.size(), boundaries_.size()};
  index_.write(&counts[0], 8);
  index_.write(&type_, 1);
  index_.write(&counts[1], 16);
  index_.write(lengths_.data(), lengths_.size() * 4);
  int64_t at = 0;
  for (int32_t tokens : lengths_) {
    index_.write(&at, 8);
    at += tokens * size_of(type_);
  }
  index_.write(boundaries_.data(), boundaries_.size() * 8);
  data_.finish();
  index_.finish();
  // An old index must never stand beside new data, whatever happens between the two renames.
  std::error_code ignored;
  std::filesystem::remove(index_.path(), ignored);
  data_.commit();
  index_.commit();
}

}  // namespace moetrain
