// A small fork-join thread pool: one parallel loop at a time, each worker beginning with its own share.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

namespace moetrain {

/// A fixed number of workers, the calling thread being worker 0. Between loops the others spin for
/// a moment and then sleep, so that more threads than cores do no harm. Results of a loop must not
/// depend on which worker runs a task or when: every kernel keeps to that.
class ThreadPool {
 public:
  /// `threads` >= 1; a pool of one starts no thread and runs everything inline.
  explicit ThreadPool(int threads);
  /// A pool of `workers` without threads of its own: the caller works alone but for threads of others
  /// that help(). Loops end whether anybody helps or not.
  struct Borrowed {};
  ThreadPool(Borrowed, int workers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Calls body(task, worker) once for every task in [0, tasks), worker in [0, size()), and returns
  /// when all are done. A worker takes the tasks of its own share (see share()) in ascending order,
  /// then from the ends of the others' shares. So rows of consecutive loops stay in the caches of
  /// the core that wrote them: reading what another core has just written is several times slower.
  /// Tasks fewer than 2^31. One caller at a time; not from inside a body. The first exception of a
  /// body is rethrown here.
  template <class Body>
  void run(int64_t tasks, Body&& body) {
    start(tasks, body, false);
  }

  /// The same, but all workers take tasks in one ascending order: for a few of very different
  /// weight, the heavy ones first.
  template <class Body>
  void run_in_order(int64_t tasks, Body&& body) {
    start(tasks, body, true);
  }

  /// Takes part, as `worker` of [1, size()), in the loop in flight, if there is one, until it has no tasks
  /// left. From a thread that is not another worker of the pool at the same time.
  void help(int worker) { work(worker); }

  /// Where the share of `worker` begins among `tasks`; it ends where the next one's begins.
  int64_t share(int64_t tasks, int64_t worker) const { return tasks * worker / size_; }

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
  /// The tasks of a share that nobody has claimed: the first (high half) and the end.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  template <class Body>
  void start(int64_t tasks, Body& body, bool in_order) {
    if (tasks <= 0) return;
    if (size_ == 1 || tasks == 1) {
      for (int64_t i = 0; i < tasks; ++i) body(i, 0);
      return;
    }
    run_shared(
        tasks, in_order,
        [](void* context, int64_t task, int worker) {
          (*static_cast<Body*>(context))(task, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  void run_shared(int64_t tasks, bool in_order, Call call, void* context);
  void stop();
  void work(int worker);
  bool claim(Share& share, bool last, uint32_t& task);
  void loop(int worker);

  const int size_;
  std::vector<std::thread> threads_;

  // The loop in flight: written by the caller before `shares_`, read only by who has claimed a
  // task: a claim is valid by itself, so the caller waits for the tasks that are claimed and never
  // for a worker that has yet to wake up.
  Call call_ = nullptr;
  void* context_ = nullptr;
  uint32_t tasks_ = 0;
  std::atomic<bool> in_order_{false};  // all tasks are in the first share, taken from its front
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stop_{false};

  std::unique_ptr<Share[]> shares_;
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace moetrain
