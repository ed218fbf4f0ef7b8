// The lock of an output folder, by flock(2).
#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/file.h"

namespace moetrain {

FolderLock::FolderLock(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = folder + "/.lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw UserError(cat(path, ": cannot open: ", std::strerror(errno),
                        "; the output folder must be writable (run.output_dir)"));
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == EWOULDBLOCK) {
      std::string holder = read_file(path);
      while (!holder.empty() && holder.back() == '\n') holder.pop_back();
      ::close(fd_);
      throw UserError(cat(folder, ": another run uses this output folder",
                          holder.empty() ? "" : cat(" (", holder, ")"),
                          "; stop it or choose another run.output_dir"));
    }
    log_warning(cat(path, ": this file system has no locks (", std::strerror(reason),
                    "); make sure that no other run uses the folder"));
    return;
  }
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  const std::string text = cat("process ", ::getpid(), " on ", host, "\n");
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    log_warning(cat(path, ": cannot note who holds the lock: ", std::strerror(errno)));
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace moetrain
