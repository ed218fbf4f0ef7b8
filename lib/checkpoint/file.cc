// The few system calls that durable files need, each failure named.
#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace moetrain {
namespace {

[[noreturn]] void fail(const std::string& doing, const std::string& path, int exit_code) {
  const int reason = errno;
  throw UserError(cat(path, ": cannot ", doing, ": ", std::strerror(reason)), exit_code);
}

}  // namespace

FileWriter::FileWriter(std::string path, Mode mode) : path_(std::move(path)) {
  const int how = mode == Mode::kReplace ? O_TRUNC : O_APPEND;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0644);
  if (fd_ < 0) fail("open the file for writing", path_, kExitFailure);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(const void* data, size_t size) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd_, p, std::min(size, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = EIO;
      fail(cat("write (", written_, " bytes done)"), path_, kExitFailure);
    }
    p += n;
    size -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void FileWriter::sync() {
  if (::fsync(fd_) != 0) fail("bring the file to the disk", path_, kExitFailure);
}

void FileWriter::finish() {
  sync();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("close the file", path_, kExitFailure);
}

std::string read_file(const std::string& path) {
  std::FILE* in = std::fopen(path.c_str(), "rbe");
  if (in == nullptr) fail("open the file", path, kExitRefused);
  std::string text;
  char buffer[1 << 16];
  size_t n;
  while ((n = std::fread(buffer, 1, sizeof buffer, in)) > 0) text.append(buffer, n);
  const bool bad = std::ferror(in) != 0;
  std::fclose(in);
  if (bad) throw UserError(cat(path, ": cannot read the file"));
  return text;
}

void write_file_atomically(const std::string& path, std::string_view contents) {
  const std::string draft = path + ".tmp";
  FileWriter out(draft);
  out.write(contents);
  out.finish();
  if (std::rename(draft.c_str(), path.c_str()) != 0) fail("rename into place", path, kExitFailure);
  const std::string parent = std::filesystem::path(path).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

void sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open the folder", path, kExitFailure);
  // Some network file systems refuse fsync on folders (EINVAL); they order renames themselves.
  const bool bad = ::fsync(fd) != 0 && errno != EINVAL;
  const int reason = errno;
  ::close(fd);
  errno = reason;
  if (bad) fail("bring the folder to the disk", path, kExitFailure);
}

uint64_t free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) fail("ask for free space", path, kExitFailure);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace moetrain
