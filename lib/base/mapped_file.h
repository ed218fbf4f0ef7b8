// A whole file as memory, read only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moetrain {

/// A regular file mapped for reading; an empty file gives an empty view. Owns the mapping, which
/// does not move when the object does. Throws UserError that names the file and the system's
/// reason.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace moetrain
