// Lanes: order, events between lanes, and failures that surface where they are waited for.
#include "runtime/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace moetrain {
namespace {

TEST(InlineLane, RunsAtOnceInTheCallersThread) {
  const auto lane = make_inline_lane();
  std::thread::id where;
  lane->post([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_TRUE(lane->record().reached());
  lane->synchronize();
}

TEST(InlineLane, FailureSurfacesAtSynchronizeAndStopsLaterWork) {
  const auto lane = make_inline_lane();
  bool later = false;
  lane->post([] { throw std::runtime_error("boom"); });
  lane->post([&] { later = true; });
  EXPECT_THROW(lane->synchronize(), std::runtime_error);
  EXPECT_THROW(lane->record().host_wait(), std::runtime_error);
  EXPECT_FALSE(later);
}

TEST(ThreadedLane, RunsInOrderOnItsOwnThread) {
  const auto lane = make_threaded_lane();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    lane->post([&, i] {
      EXPECT_NE(std::this_thread::get_id(), std::thread::id());
      order.push_back(i);
    });
  }
  lane->synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadedLane, EventsOrderTwoLanes) {
  const auto a = make_threaded_lane(), b = make_threaded_lane();
  std::atomic<bool> open{false};
  int value = 0;
  a->post([&] {
    while (!open) std::this_thread::yield();
    value = 42;
  });
  const Event done = a->record();
  EXPECT_FALSE(done.reached());
  int seen = 0;
  b->wait(done);
  b->post([&] { seen = value; });
  const Event after = b->record();
  EXPECT_FALSE(after.reached());
  open = true;
  after.host_wait();
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(done.reached());
}

TEST(ThreadedLane, FailureReachesEventsAfterItAndOtherLanesButNotEventsBefore) {
  const auto a = make_threaded_lane(), b = make_threaded_lane();
  a->post([] {});
  const Event before = a->record();
  a->post([] { throw std::runtime_error("boom"); });
  const Event after = a->record();
  bool ran = false;
  b->wait(after);
  b->post([&] { ran = true; });
  EXPECT_THROW(b->synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
  EXPECT_NO_THROW(before.host_wait());
  EXPECT_THROW(after.host_wait(), std::runtime_error);
  EXPECT_THROW(a->synchronize(), std::runtime_error);
}

TEST(ThreadedLane, EventsOutliveTheLaneAndDestructionFinishesTheWork) {
  Event event;
  int done = 0;
  {
    const auto lane = make_threaded_lane();
    for (int i = 0; i < 50; ++i) lane->post([&] { ++done; });
    event = lane->record();
  }
  EXPECT_EQ(done, 50);
  EXPECT_TRUE(event.reached());
  event.host_wait();
}

TEST(Event, EmptyCountsAsReached) {
  EXPECT_TRUE(Event().reached());
  Event().host_wait();
}

}  // namespace
}  // namespace moetrain
