// Files that are either whole on the disk or not there: named errors, fsync, atomic replacement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moetrain {

/// A new file, written front to back. Failures are UserErrors (exit code 1) that name the file and
/// the system's reason (for example "No space left on device").
class FileWriter {
 public:
  enum class Mode { kReplace, kAppend };
  /// Creates `path`; empties what was there, or continues behind it. Nothing is buffered here: what
  /// was written survives the end of the process.
  explicit FileWriter(std::string path, Mode mode = Mode::kReplace);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Brings what was written to the disk (fsync).
  void sync();
  /// sync(), then closes. Without it the file counts as abandoned.
  void finish();

  const std::string& path() const { return path_; }
  uint64_t written() const { return written_; }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

/// The whole of a (small) file. UserError if it cannot be read.
std::string read_file(const std::string& path);

/// Replaces `path` so that a reader, or a restart after a crash, sees the old or the new contents.
void write_file_atomically(const std::string& path, std::string_view contents);

/// Makes creations, renames and deletions inside a folder durable.
void sync_directory(const std::string& path);

/// Space left for this user on the file system that holds `path`.
uint64_t free_bytes(const std::string& path);

}  // namespace moetrain
