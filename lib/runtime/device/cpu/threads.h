// A small fork-join thread pool: one parallel loop at a time, tasks claimed one by one.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace moetrain {

/// A fixed number of workers, the calling thread being worker 0. Between loops the others spin for
/// a moment and then sleep, so that more threads than cores do no harm. Results of a loop must not
/// depend on which worker runs a task or when: every kernel keeps to that.
class ThreadPool {
 public:
  /// `threads` >= 1; a pool of one starts no thread and runs everything inline.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Calls body(task, worker) once for every task in [0, tasks), worker in [0, size()), and returns
  /// when all are done. Tasks (fewer than 2^31) are claimed in ascending order, so heavy ones
  /// should come first. One caller at a time; not from inside a body. The first exception of a body
  /// is rethrown here.
  template <class Body>
  void run(int64_t tasks, Body&& body) {
    if (tasks <= 0) return;
    if (size_ == 1 || tasks == 1) {
      for (int64_t i = 0; i < tasks; ++i) body(i, 0);
      return;
    }
    run_shared(
        tasks,
        [](void* context, int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
        },
        &body);
  }

  /// Calls body(begin, end, worker) for consecutive ranges of at most `grain` items of [0, items).
  template <class Body>
  void run_ranges(int64_t items, int64_t grain, Body&& body) {
    const int64_t step = grain < 1 ? 1 : grain;
    run((items + step - 1) / step, [&](int64_t task, int worker) {
      const int64_t begin = task * step;
      body(begin, begin + step < items ? begin + step : items, worker);
    });
  }

 private:
  using Call = void (*)(void* context, int64_t task, int worker);

  void run_shared(int64_t tasks, Call call, void* context);
  void stop();
  void work(int worker);
  void loop(int worker);

  const int size_;
  std::vector<std::thread> threads_;

  // The loop in flight: written by the caller before `claims_`, read only by who has claimed a
  // task.
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stop_{false};

  /// Number of tasks (high half) and the next one to claim (low half): a claim is valid by itself,
  /// so the caller waits for the tasks that are claimed and never for a worker that has yet to wake
  /// up.
  alignas(64) std::atomic<uint64_t> claims_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace moetrain
