// The safetensors format: a strict reader over a mapped file and a streaming writer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor.h"
#include "checkpoint/element.h"
#include "checkpoint/file.h"

namespace moetrain {

/// One tensor of a file; `begin` and `end` are byte offsets into the data part.
struct FileTensor {
  std::string name;
  FileType type = FileType::kF32;
  Shape shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// What a safetensors header says, checked against the size of the file.
struct SafetensorsHeader {
  std::vector<FileTensor> tensors;              ///< in the order of their data
  std::map<std::string, std::string> metadata;  ///< the `__metadata__` entry
  uint64_t data_begin = 0;                      ///< 8 + header size
};

/// Checks everything a damaged or hostile file can get wrong: header size, JSON, duplicate or
/// unknown keys, dtype names, shapes (64-bit overflow), size = shape x dtype, and that the data
/// parts tile the rest of the file without hole or overlap. UserError listing file and tensor.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

/// A mapped, validated file. Several threads may read from one.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of their data.
  const std::vector<FileTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// The length field and the JSON, as stored.
  std::string_view header_bytes() const { return file_.text().substr(0, header_.data_begin); }
  /// The tensor called `name`, or nullptr.
  const FileTensor* find(std::string_view name) const;
  /// The same; UserError that names the nearest tensor if there is none.
  const FileTensor& at(std::string_view name) const;
  /// First byte of a tensor's data. It may be unaligned: a file may be packed that way.
  const char* data(const FileTensor& tensor) const;
  /// Copies all elements to `out`, converted to `as`. UserError if that conversion would not keep
  /// the meaning (see can_convert).
  void read(const FileTensor& tensor, DType as, void* out) const;

 private:
  std::string path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;
};

/// A tensor to be written; no data yet.
struct FileTensorSpec {
  std::string name;
  FileType type = FileType::kF32;
  Shape shape;
};

/// Writes a file tensor by tensor, so that only one needs to be in memory.
class SafetensorsWriter {
 public:
  /// Writes the header. Tensors are laid out by falling element size (keeps all data aligned),
  /// otherwise in the order given.
  SafetensorsWriter(const std::string& path, const std::vector<FileTensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// Indices into the constructor's list, in the order in which `append` expects the data.
  const std::vector<size_t>& order() const { return order_; }
  /// The data of the next tensor in order(), complete. Returns its crc32c.
  uint32_t append(const void* data, uint64_t bytes);
  /// Flushes to the disk. All tensors must have been appended.
  void finish();

  uint32_t header_crc() const { return header_crc_; }
  /// Bytes written so far; after finish() the size of the file.
  uint64_t written() const { return out_.written(); }

 private:
  FileWriter out_;
  std::vector<size_t> order_;
  std::vector<uint64_t> bytes_;
  size_t next_ = 0;
  uint32_t header_crc_ = 0;
};

/// A tensor with its name.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Writes a whole file at once.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace moetrain
