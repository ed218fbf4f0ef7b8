// The thread pool: every task once, exceptions, many short loops, more workers than cores.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/device/cpu/threads.h"

namespace moetrain {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> done(tasks, 0);
      pool.run(tasks, [&](int64_t i, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++done[i];
      });
      EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), tasks);
      for (int d : done) EXPECT_EQ(d, 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoops) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 2000; ++round) {
    pool.run(5, [&](int64_t i, int) { sum.fetch_add(i, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 2000 * 10);
}

TEST(ThreadPool, WorkersBeginWithTheirOwnShareAndTakeOverTheOthersEnds) {
  constexpr int kThreads = 3;
  for (int round = 0; round < 20; ++round) {
    ThreadPool pool(kThreads);  // a worker may still be looking for tasks of an earlier loop
    std::vector<int> ran_by(9, -1);
    std::vector<int64_t> order;  // of worker 0
    std::atomic<int> begun{0};
    std::atomic<bool> over{false};
    pool.run(9, [&](int64_t task, int worker) {
      ran_by[task] = worker;
      if (worker == 0) order.push_back(task);
      if (task % 3 == 0 && task / 3 == worker) ++begun;
      while (begun < kThreads) std::this_thread::yield();
      // The others keep to their first task until nothing else is left.
      while (worker != 0 && !over) std::this_thread::yield();
      if (worker == 0 && order.size() == 7) over = true;
    });
    EXPECT_EQ(ran_by[3], 1);
    EXPECT_EQ(ran_by[6], 2);
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 5, 4, 8, 7}));
  }
}

TEST(ThreadPool, OrderedTasksAreTakenInAscendingOrder) {
  ThreadPool pool(3);
  std::atomic<int64_t> begun{0};
  std::atomic<bool> ordered{true};
  pool.run_in_order(300, [&](int64_t task, int) {
    // at most two others can have claimed an earlier task and not counted it yet
    if (begun.fetch_add(1) < task - 2) ordered = false;
  });
  EXPECT_TRUE(ordered);
  EXPECT_EQ(begun.load(), 300);
}

TEST(ThreadPool, SaysWhenTheSystemGivesNoMoreThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the memory that this takes away";
#endif
  constexpr size_t kLimit = size_t{1} << 30;
  constexpr int kNoLimit = 8;
  const auto starve = [] {
    const rlimit limit{kLimit, kLimit};
    setrlimit(RLIMIT_AS, &limit);  // each thread reserves a stack
    void* volatile more = std::malloc(2 * kLimit);
    if (more) std::_Exit(kNoLimit);
    try {
      ThreadPool pool(20000);
    } catch (const UserError& e) {
      std::fputs(e.what(), stderr);
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  const pid_t probe = fork();
  if (probe == 0) {
    std::fclose(stderr);
    starve();
  }
  int status = 0;
  waitpid(probe, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoLimit) {
    GTEST_SKIP() << "memory limits do not hold here (an emulated processor)";
  }
  EXPECT_EXIT(starve(), ::testing::ExitedWithCode(7), "20000 threads cannot be started");
}

TEST(ThreadPool, RangesCoverAllItems) {
  ThreadPool pool(3);
  std::vector<int> done(103, 0);
  pool.run_ranges(103, 10, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) ++done[i];
  });
  for (int d : done) EXPECT_EQ(d, 1);
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(50,
                          [](int64_t i, int) {
                            if (i == 17) throw std::runtime_error("seventeen");
                          }),
                 std::runtime_error);
    std::atomic<int> count{0};
    pool.run(50, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count.load(), 50);
  }
}

}  // namespace
}  // namespace moetrain
