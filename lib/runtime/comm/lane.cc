// The two lanes of a host device: one that runs work at once, one with a thread of its own.
#include "runtime/lane.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace moetrain {

namespace {

/// Reached from the start; carries the failure of the lane it was recorded on, if any.
struct DoneState : Event::State {
  explicit DoneState(std::exception_ptr failure) : failure(std::move(failure)) {}
  bool reached() const override { return true; }
  void host_wait() const override {
    if (failure) std::rethrow_exception(failure);
  }
  std::exception_ptr failure;
};

class InlineLane : public HostLane {
 public:
  Event record() override {
    if (!failure_) return Event();
    return Event(std::make_shared<DoneState>(failure_));
  }

  void wait(const Event& event) override {
    post([&event] { event.host_wait(); });
  }

  void synchronize() override {
    if (failure_) std::rethrow_exception(failure_);
  }

  void post(std::function<void()> work) override {
    if (failure_) return;  // what follows a failure would compute on garbage
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

 private:
  std::exception_ptr failure_;
};

/// What a threaded lane shares with its events, which may outlive it.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<uint64_t> done{0};  // work items finished (or skipped after a failure)
  std::exception_ptr failure;     // the first one; guarded by mutex
  uint64_t failed_at = UINT64_MAX;

  /// Blocks until `count` items are done; rethrows a failure among them.
  void wait_for(uint64_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done.load(std::memory_order_relaxed) >= count; });
    if (failure && failed_at < count) std::rethrow_exception(failure);
  }
};

struct CountState : Event::State {
  CountState(std::shared_ptr<Progress> progress, uint64_t count)
      : progress(std::move(progress)), count(count) {}
  bool reached() const override {
    return progress->done.load(std::memory_order_acquire) >= count;
  }
  void host_wait() const override { progress->wait_for(count); }
  std::shared_ptr<Progress> progress;
  uint64_t count;
};

class ThreadedLane : public HostLane {
 public:
  ThreadedLane() : thread_([this] { run(); }) {}

  ~ThreadedLane() override {
    {
      std::lock_guard lock(queue_mutex_);
      closing_ = true;
    }
    queue_changed_.notify_one();
    thread_.join();
  }

  Event record() override { return Event(std::make_shared<CountState>(progress_, issued_)); }

  void wait(const Event& event) override {
    if (!event.state()) return;
    post([event] { event.host_wait(); });
  }

  void synchronize() override { progress_->wait_for(issued_); }

  void post(std::function<void()> work) override {
    ++issued_;
    {
      std::lock_guard lock(queue_mutex_);
      queue_.push_back(std::move(work));
    }
    queue_changed_.notify_one();
  }

 private:
  void run() {
    for (uint64_t index = 0;; ++index) {
      std::function<void()> work;
      {
        std::unique_lock lock(queue_mutex_);
        queue_changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      std::exception_ptr failure;
      if (!failed_) {
        try {
          work();
        } catch (...) {
          failure = std::current_exception();
          failed_ = true;
        }
      }
      work = nullptr;  // captured state goes before the item counts as done
      {
        std::lock_guard lock(progress_->mutex);
        if (failure) {
          progress_->failure = failure;
          progress_->failed_at = index;
        }
        progress_->done.store(index + 1, std::memory_order_release);
      }
      progress_->changed.notify_all();
    }
  }

  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  uint64_t issued_ = 0;  // executor's thread only
  bool failed_ = false;  // lane's thread only
  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<std::function<void()>> queue_;
  bool closing_ = false;
  std::thread thread_;  // last: starts when everything above exists
};

}  // namespace

std::unique_ptr<HostLane> make_inline_lane() { return std::make_unique<InlineLane>(); }
std::unique_ptr<HostLane> make_threaded_lane() { return std::make_unique<ThreadedLane>(); }

}  // namespace moetrain
