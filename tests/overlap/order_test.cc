// The list scheduler on paper: published numbers, fillers, the bound of the store, and validity on random work.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "compile/overlap.h"

namespace moetrain {
namespace {

/// Milliseconds of one layer's parts; every transfer takes `transfer`.
struct LayerTimes {
  double attention = 4, experts = 3, experts_back = 3, experts_weight = 2, attention_back = 6,
         attention_weight = 2, transfer = 3;
};

/// Tasks of a forward pass and of a backward pass of another micro-batch through `layers` MoE layers.
class PassTasks {
 public:
  PassTasks(int layers, int lane, const LayerTimes& t = {}) : lane_(lane) {
    int last = -1;
    for (int l = 0; l < layers; ++l) {
      last = compute(t.attention, last);
      last = transfer(t.transfer, last);
      last = compute(t.experts, last);
      last = transfer(t.transfer, last);
    }
    last = -1;
    for (int l = 0; l < layers; ++l) {
      const int back = transfer(t.transfer, last);
      last = compute(t.experts_back, back);
      compute(t.experts_weight, back);
      const int dispatched = transfer(t.transfer, last);
      last = compute(t.attention_back, dispatched);
      compute(t.attention_weight, dispatched);
    }
  }
  std::vector<Task> tasks;

 private:
  int compute(double seconds, int after) { return add(seconds, 0, after); }
  int transfer(double seconds, int after) { return add(seconds, lane_, after); }
  int add(double seconds, int lane, int after) {
    tasks.push_back({seconds, lane, after < 0 ? std::vector<int>{} : std::vector<int>{after}, 1});
    return static_cast<int>(tasks.size()) - 1;
  }
  int lane_;
};

double length_of(const std::vector<Task>& tasks) {
  return time_order(tasks, overlap_order(tasks, 1 << 30)).length;
}

// 4+3+5+6+2 = 20 ms a layer with everything hidden, 32 with nothing.
TEST(Order, APairOfPassesHidesItsTransfers) {
  for (int layers : {2, 4, 8, 16}) {
    SCOPED_TRACE(layers);
    EXPECT_DOUBLE_EQ(length_of(PassTasks(layers, 0).tasks), 32.0 * layers);
    const std::vector<Task> tasks = PassTasks(layers, 1).tasks;
    const Timing timing = time_order(tasks, overlap_order(tasks, 1 << 30));
    EXPECT_LE(timing.length, 20.0 * layers * 1.1);
    EXPECT_GE(timing.length, 20.0 * layers);
  }
}

TEST(Order, OneBackwardPassHidesWhatItsWeightGradientsCover) {
  // A chain CO' EXx DI' ATx with EXw, ATw free: 3+3+3+6 a layer is the way, 4 of 6 ms of transfers hidden.
  std::vector<Task> tasks = PassTasks(6, 1).tasks;
  std::vector<Task> backward(tasks.begin() + 24, tasks.end());
  for (Task& t : backward) {
    for (int& a : t.after) a -= 24;
  }
  const Timing timing = time_order(backward, overlap_order(backward, 1 << 30));
  EXPECT_LE(timing.length, 6 * 15.0 + 4);
  EXPECT_LE(timing.waited, 6 * 2.0 + 4);
}

TEST(Order, StaysWithoutTransfers) {
  const std::vector<Task> tasks = PassTasks(3, 0).tasks;
  std::vector<int> expected(tasks.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(overlap_order(tasks, 0), expected);
}

// The most bytes that work put off holds at any time, beyond the one being chosen.
int64_t most_stored(const std::vector<Task>& tasks, const std::vector<int>& order,
                    const std::vector<int>& fillers) {
  std::vector<char> issued(tasks.size(), 0);
  int64_t most = 0;
  for (int i : order) {
    issued[i] = 1;
    if (tasks[i].lane != 0) continue;
    int64_t stored = 0;
    for (int f : fillers) {
      const bool ready = std::all_of(tasks[f].after.begin(), tasks[f].after.end(),
                                     [&](int a) { return issued[a] != 0; });
      if (ready && !issued[f]) stored += tasks[f].pinned;
    }
    most = std::max(most, stored);
  }
  return most;
}

TEST(Order, TheStoreOfWeightGradientsIsBounded) {
  // Transfers of no length leave no gaps, so nothing would run a filler before the end.
  LayerTimes times;
  times.transfer = 0;
  const std::vector<Task> tasks = PassTasks(12, 1, times).tasks;
  std::vector<char> used(tasks.size(), 0);
  for (const Task& t : tasks) {
    for (int a : t.after) used[a] = 1;
  }
  std::vector<int> fillers;
  for (size_t i = 48; i + 1 < tasks.size(); ++i) {
    if (!used[i] && tasks[i].lane == 0) fillers.push_back(static_cast<int>(i));
  }
  ASSERT_GE(fillers.size(), 20u);
  const int64_t unbounded = most_stored(tasks, overlap_order(tasks, 1 << 30), fillers);
  const int64_t bounded = most_stored(tasks, overlap_order(tasks, 4), fillers);
  EXPECT_GE(unbounded, 12);
  EXPECT_LE(bounded, 6);  // what became ready since the last choice may exceed the bound until the next
}

TEST(Order, WhatOthersWaitForGoesFirst) {
  // 0 -> 1 (sent elsewhere), 0 -> 2 -> transfer 3: the send must not wait behind the longer way.
  std::vector<Task> tasks = {{1, 0, {}, 0}, {5, 0, {0}, 0}, {0, 0, {0}, 0, true}, {1, 1, {1}, 0}};
  const std::vector<int> order = overlap_order(tasks, 0);
  EXPECT_EQ(order[1], 2);
}

TEST(Order, NothingRunsFurtherAheadThanItMay) {
  // Ten seconds of computation; a transfer that could start at once is read by the last of it.
  std::vector<Task> tasks = {{1, 0, {}, 0}};
  tasks.push_back({2, 1, {0}, 0});
  for (int i = 1; i < 10; ++i) tasks.push_back({1, 0, {static_cast<int>(tasks.size()) - (i == 1 ? 2 : 1)}, 0});
  tasks.push_back({1, 0, {1, 10}, 0});
  tasks.push_back({1, 1, {11}, 0});  // makes the computations more than fillers
  auto place = [&](double early) {
    tasks[1].early = early;
    const std::vector<int> order = overlap_order(tasks, 0);
    return std::find(order.begin(), order.end(), 1) - order.begin();
  };
  EXPECT_EQ(place(Task::kAnyTime), 1);
  EXPECT_EQ(place(4), 6);  // four more computations before its user
  EXPECT_EQ(place(0), 10);
}

TEST(Order, IsValidAndRepeatsOnRandomWork) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + static_cast<int>(random() % 60);
    std::vector<Task> tasks(n);
    for (int i = 0; i < n; ++i) {
      tasks[i].seconds = static_cast<double>(random() % 5);
      tasks[i].lane = static_cast<int>(random() % 4);
      tasks[i].pinned = static_cast<int64_t>(random() % 3);
      tasks[i].at_once = tasks[i].lane == 0 && random() % 8 == 0;
      tasks[i].side = static_cast<int>(random() % 2);
      if (random() % 2) tasks[i].early = static_cast<double>(random() % 6);
      for (int k = 0; k < 3 && i > 0; ++k) {
        if (random() % 2) tasks[i].after.push_back(static_cast<int>(random() % i));
      }
      std::sort(tasks[i].after.begin(), tasks[i].after.end());
      tasks[i].after.erase(std::unique(tasks[i].after.begin(), tasks[i].after.end()),
                           tasks[i].after.end());
    }
    const std::vector<int> order = overlap_order(tasks, static_cast<int64_t>(random() % 6));
    ASSERT_EQ(static_cast<int>(order.size()), n);
    std::vector<int> place(n, -1);
    for (int k = 0; k < n; ++k) place[order[k]] = k;
    for (int i = 0; i < n; ++i) {
      ASSERT_GE(place[i], 0);
      for (int a : tasks[i].after) ASSERT_LT(place[a], place[i]);
    }
  }
}

}  // namespace
}  // namespace moetrain
