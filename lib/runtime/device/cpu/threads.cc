// The fork-join pool: a round counter wakes the workers, a packed range per worker hands out tasks.
#include "runtime/device/cpu/threads.h"

#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace moetrain {
namespace {

/// About 20 to 50 microseconds: longer than the gap between two kernels, shorter than a time slice.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : size_(threads < 1 ? 1 : threads), shares_(std::make_unique<Share[]>(size_)) {
  threads_.reserve(size_ - 1);
  try {
    for (int worker = 1; worker < size_; ++worker) {
      threads_.emplace_back([this, worker] { loop(worker); });
    }
  } catch (const std::system_error& e) {
    const size_t started = threads_.size() + 1;
    stop();
    throw UserError(cat("compute.threads: ", size_, " threads cannot be started, only ", started,
                        " (", e.code().message(), "); ask for fewer"),
                    kExitFailure);
  }
}

ThreadPool::ThreadPool(Borrowed, int workers)
    : size_(workers < 1 ? 1 : workers), shares_(std::make_unique<Share[]>(size_)) {}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  if (threads_.empty()) return;
  stop_.store(true);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

/// Takes the first or the last unclaimed task of a share.
bool ThreadPool::claim(Share& share, bool last, uint32_t& task) {
  uint64_t left = share.left.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t begin = static_cast<uint32_t>(left >> 32), end = static_cast<uint32_t>(left);
    if (begin >= end) return false;
    task = last ? end - 1 : begin;
    // A range that looks like the one of an earlier loop is no harm: the claim is one of this loop.
    const uint64_t rest = last ? left - 1 : left + (uint64_t{1} << 32);
    if (share.left.compare_exchange_weak(left, rest, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      return true;
    }
  }
}

void ThreadPool::work(int worker) {
  for (int i = 0; i < size_; ++i) {
    Share& share = shares_[(worker + i) % size_];
    uint32_t task = 0;
    while (claim(share, i > 0 && !in_order_.load(std::memory_order_relaxed), task)) {
      const uint32_t tasks = tasks_;
      try {
        call_(context_, task, worker);
      } catch (...) {
        if (!failed_.exchange(true)) failure_ = std::current_exception();
      }
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_one();
    }
  }
}

void ThreadPool::run_shared(int64_t tasks, bool in_order, Call call, void* context) {
  MT_CHECK(tasks < int64_t{1} << 31, tasks, " tasks in one loop");
  call_ = call;
  context_ = context;
  failure_ = nullptr;
  failed_.store(false, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  tasks_ = static_cast<uint32_t>(tasks);
  in_order_.store(in_order, std::memory_order_relaxed);
  for (int w = 0; w < size_; ++w) {
    const auto begin = static_cast<uint64_t>(in_order && w > 0 ? tasks : share(tasks, w));
    const auto end = static_cast<uint64_t>(in_order ? tasks : share(tasks, w + 1));
    shares_[w].left.store(begin << 32 | end, std::memory_order_release);
  }
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int spin = 0;; ++spin) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == static_cast<uint32_t>(tasks)) break;
    if (spin < kSpins) {
      pause();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::loop(int worker) {
  uint32_t seen = 0;
  while (!stop_.load()) {
    uint32_t round = round_.load(std::memory_order_acquire);
    for (int spin = 0; round == seen; ++spin) {
      if (spin < kSpins) {
        pause();
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
      round = round_.load(std::memory_order_acquire);
    }
    seen = round;
    work(worker);
  }
}

}  // namespace moetrain
