// One run per output folder: a lock that the system releases when the process ends, however it
// ends.
#pragma once

#include <string>

namespace moetrain {

/// Holds `folder`/.lock exclusively. Rank 0 only.
class FolderLock {
 public:
  /// UserError naming host and process of the holder if another run uses the folder. Where the file
  /// system knows no locks, a warning is logged and the run goes on.
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace moetrain
