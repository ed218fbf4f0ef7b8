// Atomic output and mapped input: the only places of this room that open files.
#include "data/output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace moetrain {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void fail_at(const std::string& path, const char* what) {
  throw UserError({{path, cat(what, ": ", std::strerror(errno))}});
}

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

MappedData::MappedData(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_at(path, "cannot open the file");
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw UserError({{path, "not a regular file"}});
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* at = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int reason = errno;
    ::close(fd);
    errno = reason;
    if (at == MAP_FAILED) fail_at(path, "cannot map the file");
    data_ = static_cast<const unsigned char*>(at);
  } else {
    ::close(fd);
  }
}

MappedData::~MappedData() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
}

MappedData::MappedData(MappedData&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedData& MappedData::operator=(MappedData&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace moetrain
