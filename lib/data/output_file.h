// A file that appears under its name only when complete: written beside it, synced, then renamed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moetrain {

/// Buffered output to `path` + ".tmp.PID"; commit() publishes it, the destructor without commit()
/// removes it. Any failure throws UserError naming the file and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* bytes, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Everything to the disk, file closed, still under its temporary name.
  void finish();
  /// finish() if needed, then the rename.
  void commit();
  const std::string& path() const { return path_; }

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  std::vector<char> buffer_;
  int fd_ = -1;
  bool published_ = false;
};

}  // namespace moetrain
