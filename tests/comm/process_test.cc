// What a process does to its surroundings: allocator settings, launch checks, shared memory left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/launch.h"
#include "runtime/comm/shared_segment.h"

namespace moetrain {
namespace {

#ifndef MOETRAIN_SANITIZED
TEST(Allocator, FreedMemoryIsNotTouchedAnew) {
  tune_allocator();
  constexpr size_t kBytes = size_t{32} << 20;
  const auto touch = [] {
    // volatile: an unused allocation may be optimised away
    char* volatile block = static_cast<char*>(malloc(kBytes));
    memset(block, 1, kBytes);
    free(block);
  };
  touch();
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 3; ++i) touch();
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 100) << "of 24576 pages";
}
#endif

/// Environment variables of the launchers, restored at the end.
class Launcher : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
                             "SLURM_NPROCS", "PMIX_RANK", "PMI_RANK", "PMI_FD"}) {
      unsetenv(name);
    }
  }
  void TearDown() override { SetUp(); }
};

TEST_F(Launcher, NothingSetMeansOneRank) {
  EXPECT_FALSE(launched_under_mpi());
  check_launcher(1);
}

TEST_F(Launcher, MismatchNamesBothNumbers) {
  setenv("SLURM_NTASKS", "4", 1);
  EXPECT_FALSE(launched_under_mpi());
  try {
    check_launcher(1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("4 ranks (SLURM_NTASKS=4)"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("world has 1"), std::string::npos);
  }
}

TEST_F(Launcher, MpirunCountsMoreThanTheAllocationAroundIt) {
  setenv("SLURM_NTASKS", "8", 1);
  check_launcher(4);  // some other launcher than srun inside the allocation
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  check_launcher(1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  check_launcher(4);
  EXPECT_THROW(check_launcher(2), UserError);
}

TEST(SharedSegment, TwoMappingsAreOneMemoryAndTheNameGoes) {
  std::string name;
  const auto first = comm::create_segment(10'000, name);
  const auto second = comm::open_segment(name, 10'000);
  comm::unlink_segment(name);
  EXPECT_THROW(comm::open_segment(name, 10'000), UserError);
  EXPECT_EQ(static_cast<char*>(second.get())[9'999], 0);
  static_cast<char*>(first.get())[9'999] = 7;
  EXPECT_EQ(static_cast<char*>(second.get())[9'999], 7);
}

TEST(SharedSegment, OnlyOldUnmappedLeftoversAreRemoved) {
  const auto create = [](const std::string& path, bool old) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(file, 0);
    ASSERT_EQ(ftruncate(file, 4096), 0);
    if (old) {
      const timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
      ASSERT_EQ(futimens(file, times), 0);
    }
    close(file);
  };
  const std::string base = cat("/dev/shm/moetrain.test.", getpid());
  create(base + ".stale", true);
  create(base + ".fresh", false);
  create(base + ".mapped", true);
  const int file = open((base + ".mapped").c_str(), O_RDONLY);
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  close(file);
  EXPECT_GE(comm::remove_stale_segments(), 1);
  EXPECT_NE(access((base + ".stale").c_str(), F_OK), 0);
  EXPECT_EQ(unlink((base + ".fresh").c_str()), 0);
  EXPECT_EQ(unlink((base + ".mapped").c_str()), 0);
  munmap(memory, 4096);
}

TEST(RunJob, ReturnsTheBodysCodeOrThatOfItsError) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_NTASKS"}) {
    unsetenv(name);
  }
  EXPECT_EQ(run_job({}, [](Fabric&) { return 0; }), 0);
  EXPECT_EQ(run_job({}, [](Fabric&) -> int { return kExitResubmit; }), kExitResubmit);
  EXPECT_EQ(run_job({}, [](Fabric&) -> int { throw UserError("no such file"); }), kExitRefused);
  EXPECT_EQ(run_job({}, [](Fabric&) -> int { throw std::bad_alloc(); }), kExitFailure);
}

TEST(StopSignals, TheFirstIsNotedAndTheProcessGoesOn) {
  catch_stop_signals();
  EXPECT_EQ(stop_requested(), 0);
  raise(SIGUSR1);
  EXPECT_EQ(stop_requested(), SIGUSR1);
  raise(SIGTERM);  // within half a second: taken as the same wish
  EXPECT_EQ(stop_requested(), SIGUSR1);
}

}  // namespace
}  // namespace moetrain
