// Saves that end badly for real: processes killed at random moments, writes that the system
// refuses.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "temp_folder.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 64, kCols = 256;

/// Two ranks' halves of one state whose every element is the step.
void save(const std::string& root, int64_t step) {
  const std::vector<float> half(kRows / 2 * kCols, static_cast<float>(step));
  begin_save(root, step, 1 << 17);
  for (int rank = 0; rank < 2; ++rank) {
    write_shards(root, step, rank,
                 {{"w",
                   DType::kF32,
                   {kRows, kCols},
                   {{rank * kRows / 2, 0}, {kRows / 2, kCols}},
                   half.data(),
                   {}}});
  }
  publish(root, step, 2, {}, {2, 0});
}

/// The step of the checkpoint a restart would take, after looking at all its values; 0 if none.
int64_t restart_step(const std::string& root) {
  std::vector<std::string> warnings;
  const std::string folder = find_checkpoint(root, Trust::kChecksums, &warnings);
  if (folder.empty()) return 0;
  const CheckpointReader reader(folder);
  std::vector<float> w(kRows * kCols);
  reader.read("w", whole_box({kRows, kCols}), DType::kF32, w.data());
  EXPECT_EQ(w, std::vector<float>(w.size(), static_cast<float>(reader.step())));
  return reader.step();
}

TEST(Kill, EveryRestartFindsTheNewestPublishedCheckpoint) {
  const TempFolder folder;
  const std::string root = folder / "checkpoints";
  const CounterRandom random(3, "kill moments");
  // Moments are spread over about three saves, however slow this machine is.
  const auto start = std::chrono::steady_clock::now();
  save(root, 1);
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  const auto longest = static_cast<uint32_t>(1000 + 3 * microseconds.count());
  int64_t reached = 1;
  for (uint64_t round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prepare_root(root, 1 << 17, 1);
      for (int64_t step = reached + 1;; ++step) save(root, step);
    }
    ::usleep(random.bits(round) % longest);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
    const int64_t step = restart_step(root);
    EXPECT_GE(step, reached) << "round " << round;
    reached = step;
  }
  EXPECT_GT(reached, 1);
  prepare_root(root, 1, 1);
  for (const auto& entry : fs::directory_iterator(root)) {
    EXPECT_FALSE(entry.path().string().ends_with(".tmp")) << entry.path();
  }
}

TEST(Kill, RefusedWritesLeaveThePublishedCheckpoint) {
  const TempFolder folder;
  save(folder.path(), 1);
  const pid_t child = ::fork();  // the limit stays with the child
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10000, 10000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      save(folder.path(), 2);
    } catch (const UserError& e) {
      const std::string what = e.what();
      const bool named = what.find("step_00000002.tmp/rank_00000.safetensors: cannot write") !=
                             std::string::npos &&
                         what.find("File too large") != std::string::npos;
      abandon_save(folder.path(), 2);
      ::_exit(named && e.exit_code() == kExitFailure ? 42 : 43);
    }
    ::_exit(44);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(restart_step(folder.path()), 1);
  EXPECT_FALSE(fs::exists(folder / "step_00000002.tmp"));
}

TEST(FolderLock, SecondRunIsRefusedUntilTheFirstEnds) {
  const TempFolder folder;
  const std::string out = folder / "run";
  {
    const FolderLock first(out);
    EXPECT_REFUSED(FolderLock second(out),
                   cat("another run uses this output folder (process ", ::getpid(), " on "));
  }
  EXPECT_NO_THROW(FolderLock again(out));
}

}  // namespace
}  // namespace moetrain
