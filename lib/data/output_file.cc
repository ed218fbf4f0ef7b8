// Atomic output: the only place of this room that writes files.
#include "data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_(cat(path_, ".tmp.", ::getpid())) {
  buffer_.reserve(kBufferBytes);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot create the file");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!published_) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* what) const {
  // A full disk is no fault of the configuration.
  throw UserError({{path_, cat(what, ": ", std::strerror(errno))}}, kExitFailure);
}

void OutputFile::write(const void* bytes, size_t size) {
  const char* from = static_cast<const char*>(bytes);
  if (buffer_.size() + size > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), from, from + size);
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write");
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void OutputFile::finish() {
  if (fd_ < 0) return;
  flush();
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("cannot sync to the disk");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("cannot close");
}

void OutputFile::commit() {
  finish();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot move the finished file here");
  published_ = true;
}

}  // namespace moetrain
