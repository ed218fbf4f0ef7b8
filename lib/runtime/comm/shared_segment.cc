// POSIX shared memory for boards, and the broom for what killed runs left behind.
#include "runtime/comm/shared_segment.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"

namespace moetrain::comm {

namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr const char* kOwnPrefix = "moetrain.";
constexpr const char* kVaderPrefix = "vader_segment.";
constexpr int64_t kStaleSeconds = 60;

std::shared_ptr<void> map(int file, int64_t bytes, const std::string& name) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (memory == MAP_FAILED) {
    throw UserError(cat("cannot map ", bytes, " bytes of shared memory ", name, ": ", strerror(error)));
  }
  return std::shared_ptr<void>(memory, [bytes](void* p) { munmap(p, bytes); });
}

}  // namespace

std::shared_ptr<void> create_segment(int64_t bytes, std::string& name) {
  static std::atomic<int> counter{0};
  int file = -1;
  do {
    name = cat("/", kOwnPrefix, getuid(), ".", getpid(), ".", counter++);
    file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  } while (file < 0 && errno == EEXIST);
  if (file < 0) throw UserError(cat("cannot create shared memory ", name, ": ", strerror(errno)));
  const int error = posix_fallocate(file, 0, bytes);
  if (error != 0) {
    close(file);
    unlink_segment(name);
    throw UserError(cat("cannot reserve ", human_bytes(static_cast<double>(bytes)),
                        " of shared memory in ", kDirectory, ": ", strerror(error),
                        ". Enlarge it (mount -o remount,size=..., or --shm-size for containers) or "
                        "set parallel.ranks_per_node: 1"));
  }
  return map(file, bytes, name);
}

std::shared_ptr<void> open_segment(const std::string& name, int64_t bytes) {
  const int file = shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) {
    throw UserError(cat("cannot open shared memory ", name, " of a rank on this node: ", strerror(errno),
                        ". If ranks of one host run in separate containers, set "
                        "parallel.ranks_per_node: 1"));
  }
  return map(file, bytes, name);
}

void unlink_segment(const std::string& name) { shm_unlink(name.c_str()); }

int remove_stale_segments() {
  std::vector<std::string> candidates;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory, ignored)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(kOwnPrefix) && !file.starts_with(kVaderPrefix)) continue;
    struct stat info;
    if (stat(entry.path().c_str(), &info) != 0 || info.st_uid != getuid()) continue;
    if (time(nullptr) - info.st_mtime < kStaleSeconds) continue;
    candidates.push_back(entry.path().string());
  }
  if (candidates.empty()) return 0;  // the rule; nothing else to read
  std::set<std::string> mapped;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string id = process.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t at = line.find(kDirectory);
      if (at != std::string::npos) mapped.insert(line.substr(at));
    }
  }
  int removed = 0;
  for (const std::string& path : candidates) {
    if (!mapped.contains(path) && unlink(path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace moetrain::comm
