// Waiting: give way once, spin for a moment, yield for a while, then sleep and look at the job's health.
#include "runtime/comm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/comm/comm.h"

namespace moetrain::comm {

namespace {

constexpr int kSpins = 64;
constexpr int kYields = 16;
constexpr std::chrono::microseconds kUncontended{5};  // a yield takes less if nobody else wants the core
constexpr long kSleepNs = 50'000'000;  // between looks at the job's health

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t* word(std::atomic<uint32_t>& value) { return reinterpret_cast<uint32_t*>(&value); }

}  // namespace

std::string describe(const std::exception_ptr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    return "out of memory (std::bad_alloc)";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

Health::Health(int ranks) : left_(new std::atomic<bool>[ranks]) {
  for (int i = 0; i < ranks; ++i) left_[i].store(false, std::memory_order_relaxed);
}

void Health::fail(int rank, std::exception_ptr failure) {
  std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = failure;
  message_ = cat("rank ", rank, " failed: ", describe(failure));
  failed_.store(true, std::memory_order_release);
}

std::exception_ptr Health::first_failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Health::check() const {
  if (!failed()) return;
  std::lock_guard lock(mutex_);
  throw PeerFailure(message_);
}

uint64_t Health::enter(const std::string& what) {
  std::lock_guard lock(mutex_);
  verbs_.emplace(next_verb_, what);
  return next_verb_++;
}

void Health::leave_verb(uint64_t id) {
  beat();
  std::lock_guard lock(mutex_);
  verbs_.erase(id);
}

std::string Health::current_verb() const {
  std::lock_guard lock(mutex_);
  return verbs_.empty() ? "" : verbs_.begin()->second;
}

void Backoff::pause() {
  ++round_;
  if (!crowded_ && round_ > 1 && round_ <= kSpins) return relax();
  if (!crowded_ && round_ <= kSpins + kYields) {
    // A core that comes back late from a yield has other work: leave it to that from now on.
    const auto before = std::chrono::steady_clock::now();
    sched_yield();
    crowded_ = std::chrono::steady_clock::now() - before > kUncontended;
    return;
  }
  // Naps of a fraction of the time waited so far cost long transfers little, and save the cores of other
  // ranks from thousands of looks at every socket.
  const long us = crowded_ ? std::clamp<long>(napped_us_ / 4, 50, 1000)
                           : std::clamp<long>(napped_us_ / 8, 10, 1000);
  const timespec nap{0, us * 1000};
  nanosleep(&nap, nullptr);
  napped_us_ += us;
}

void Counter::advance(uint32_t to) {
  value.store(to, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, word(value), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
}

void Counter::wait(uint32_t target, int owner, const Health& health) {
  for (int i = 0; i < kSpins; ++i) {
    if (reached(target)) return;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (reached(target)) return;
    sched_yield();
  }
  for (;;) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = value.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - target) < 0) {
      const timespec limit{0, kSleepNs};
      syscall(SYS_futex, word(value), FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (reached(target)) return;
    health.check();
    if (health.left(owner) && !reached(target)) {
      throw PeerFailure(cat("rank ", owner, " has left the job while others wait for it"));
    }
  }
}

}  // namespace moetrain::comm
