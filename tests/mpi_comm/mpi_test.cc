// Verbs, topology, launch and faults of the MPI fabric, each as a real job under mpirun.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"

namespace moetrain {
namespace {

struct Result {
  int code;
  double seconds;
  std::string output;
};

std::string rank_program() {
  return (std::filesystem::canonical("/proc/self/exe").parent_path() / "mpi_comm_rank").string();
}

/// Runs a shell command; standard output and error together.
Result shell(const std::string& command) {
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof buffer, pipe)) > 0) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), output};
}

/// Marks the processes of this test's jobs among those of other tests.
std::string mark() { return cat("job_of_", getpid()); }

/// A job of `ranks` ranks; more than there are cores, as is usual here. Arguments: case, ranks per
/// node, victim.
Result job(int ranks, const std::string& name, int ranks_per_node = 0, int victim = 0) {
  return shell(cat("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 ",
                   MOETRAIN_MPIEXEC, " --oversubscribe --bind-to none -n ", ranks, " ",
                   rank_program(), " ", name, " ", ranks_per_node, " ", victim, " ", mark()));
}

int count(const std::string& text, const std::string& word) {
  int n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

int processes_left() {
  return std::atoi(shell(cat("ps -eo stat,args | grep -v '^Z' | grep '[m]pi_comm_rank' | grep -c ", mark()))
                       .output.c_str());
}

struct Shape {
  int ranks, ranks_per_node;
};

class MpiVerbs : public testing::TestWithParam<Shape> {};

TEST_P(MpiVerbs, KeepTheirPromises) {
  const auto [ranks, ranks_per_node] = GetParam();
  const Result r = job(ranks, "verbs", ranks_per_node);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(count(r.output, "moetrain failed"), 0) << r.output;
}

INSTANTIATE_TEST_SUITE_P(Shapes, MpiVerbs,
                         testing::Values(Shape{1, 0}, Shape{2, 0}, Shape{2, 1}, Shape{4, 0},
                                         Shape{4, 2}, Shape{5, 3}),
                         [](const auto& info) {
                           return cat(info.param.ranks, "ranks_", info.param.ranks_per_node,
                                      "perNode");
                         });

TEST(MpiNodes, FollowHostsOrTheOverride) {
  EXPECT_NE(job(4, "nodes").output.find("nodes 0000"), std::string::npos);
  EXPECT_NE(job(4, "nodes", 2).output.find("nodes 0011"), std::string::npos);
}

TEST(MpiLaunch, WithoutALauncherARunIsOneRank) {
  const Result r = shell(rank_program() + " verbs");
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(MpiLaunch, AWorldSmallerThanTheLaunchersIsRefused) {
  for (const std::string variable : {"SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const Result r = shell(cat(variable, "=4 ", rank_program(), " verbs"));
    EXPECT_EQ(r.code, kExitRefused) << r.output;
    EXPECT_NE(r.output.find(variable + "=4"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("world has 1"), std::string::npos) << r.output;
  }
}

TEST(MpiLaunch, MpirunInsideALargerSlurmAllocationIsFine) {
  const Result r = shell("export SLURM_NTASKS=8; OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                         "timeout 60 " MOETRAIN_MPIEXEC " --mca ras ^slurm --mca plm ^slurm "
                         "--oversubscribe -n 1 " + rank_program() + " nodes");
  EXPECT_EQ(r.code, 0) << r.output;
}

struct Fault {
  const char* what;
  int code;  // of mpirun; 0: any but 0
  const char* message;
  double seconds;
};

class MpiFaults : public testing::TestWithParam<Fault> {};

TEST_P(MpiFaults, EndTheWholeJob) {
  const Fault& fault = GetParam();
  const Result r = job(4, fault.what, 0, 2);
  if (fault.code == 0) {
    EXPECT_NE(r.code, 0) << r.output;
  } else {
    EXPECT_EQ(r.code, fault.code) << r.output;
  }
  EXPECT_NE(r.code, 124) << "timed out: " << r.output;
  EXPECT_LT(r.seconds, fault.seconds);
  EXPECT_NE(r.output.find(fault.message), std::string::npos) << r.output;
  EXPECT_LE(count(r.output, "moetrain failed"), 1) << r.output;
  EXPECT_EQ(r.output.find("MPI_ABORT was invoked"), std::string::npos) << r.output;
  for (int i = 0; i < 30 && processes_left() > 0; ++i) usleep(100'000);
  EXPECT_EQ(processes_left(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Rank2, MpiFaults,
    testing::Values(Fault{"throw", 1, "failed on rank 2 of 4", 15},
                    Fault{"user_error", 2, "data.train[0].prefix: no such file", 15},
                    Fault{"numbers", 3, "loss is not finite", 15},
                    Fault{"thread_throw", 1, "unhandled: helper thread", 15},
                    Fault{"bad_alloc", 1, "out of memory", 15},
                    Fault{"exit0", 1, "exit(0) was called", 15},
                    Fault{"exit3", 3, "exit(3) was called", 15},
                    Fault{"quick_exit", 0, "", 15},
                    Fault{"segv", 139, "rank 2 of 4", 15},
                    Fault{"kill", 137, "", 15},
                    Fault{"stop", 1, "rank 2 (host ", 20},
                    Fault{"leave", 0, "rank 2", 20},
                    Fault{"sleep", 1, "rank 2 has made no progress", 20}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(MpiFaults, LeaveNothingInSharedMemory) {
  job(4, "kill", 0, 2);
  EXPECT_EQ(std::atoi(shell("ls /dev/shm | grep -c '^moetrain[.]'").output.c_str()), 0);
}

TEST(MpiExit, TheLargestCodeOfAllRanksIsEverybodys) {
  const Result r = job(3, "code", 0, 1);
  EXPECT_EQ(r.code, kExitResubmit) << r.output;
}

TEST(MpiSignals, ASignalToOneRankStopsAllAtTheSameStep) {
  const Result r = job(3, "signal", 0, 1);
  EXPECT_EQ(r.code, kExitResubmit) << r.output;
  const size_t at = r.output.find("stopped at step ");
  ASSERT_NE(at, std::string::npos) << r.output;
  const std::string line = r.output.substr(at, r.output.find('\n', at) - at + 1);
  EXPECT_EQ(count(r.output, line), 3) << r.output;
}

TEST(MpiSignals, ASecondSigtermLeavesAtOnce) {
  const Result r = job(2, "second_signal", 0, 1);
  EXPECT_EQ(r.code, 143) << r.output;
  EXPECT_LT(r.seconds, 10);
}

}  // namespace
}  // namespace moetrain
