// The fork-join pool: a round counter wakes the workers, a shared counter hands out tasks.
#include "runtime/device/cpu/threads.h"

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

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
  threads_.reserve(size_ - 1);
  for (int worker = 1; worker < size_; ++worker) {
    threads_.emplace_back([this, worker] { loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  if (threads_.empty()) return;
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::work(int worker) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    try {
      call_(context_, task, worker);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
      next_.store(tasks_, std::memory_order_relaxed);
    }
  }
}

void ThreadPool::run_shared(int64_t tasks, Call call, void* context) {
  call_ = call;
  context_ = context;
  tasks_ = tasks;
  failure_ = nullptr;
  failed_.store(false, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  busy_.store(size_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int spin = 0;; ++spin) {
    const int32_t busy = busy_.load(std::memory_order_acquire);
    if (busy == 0) break;
    if (spin < kSpins) {
      pause();
    } else {
      busy_.wait(busy, std::memory_order_acquire);
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::loop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; round_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins) {
        pause();
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_) return;
    work(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace moetrain
