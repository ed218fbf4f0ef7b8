// How ranks wait for one another: kind to machines with fewer cores than ranks, and never for a dead peer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace moetrain::comm {

/// The state of a job that every wait looks at. Shared by the ranks of a local job, one per process
/// under MPI. Thread-safe.
class Health {
 public:
  explicit Health(int ranks);

  /// Records the first failure (later ones are ignored); every wait then throws PeerFailure.
  void fail(int rank, std::exception_ptr failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// The first failure, or null.
  std::exception_ptr first_failure() const;

  /// `rank` has returned from its body: whoever still waits for it waits in vain.
  void leave(int rank) { left_[rank].store(true, std::memory_order_release); }
  bool left(int rank) const { return left_[rank].load(std::memory_order_acquire); }

  /// Throws PeerFailure if the job has failed.
  void check() const;

  /// Called when a verb begins and ends; the watchdog reads them.
  uint64_t enter(const std::string& what);
  void leave_verb(uint64_t id);
  /// Grows with every finished verb (and whatever else calls beat()).
  int64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  /// The longest-running verb: "all_gather of group tp", or "" outside any.
  std::string current_verb() const;

 private:
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> beats_{0};
  std::unique_ptr<std::atomic<bool>[]> left_;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
  std::string message_;
  uint64_t next_verb_ = 0;
  std::map<uint64_t, std::string> verbs_;
};

/// Rounds of waiting for something that can only be polled: a yield, a few pauses, more yields, then sleeps
/// of 10 us that grow with the time waited to 1 ms. As soon as a yield shows that others want the core,
/// sleeps from 50 us on.
class Backoff {
 public:
  void pause();

 private:
  int round_ = 0;
  bool crowded_ = false;
  long napped_us_ = 0;
};

/// A counter that one rank advances and others wait for, in memory they share (threads or processes).
/// Zero bytes are a valid fresh counter. Counts may wrap: only differences below 2^31 are compared.
struct alignas(64) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  /// Sets the count and wakes whoever sleeps on it. One writer only.
  void advance(uint32_t to);
  /// Blocks until the count is at least `target`; throws PeerFailure if the job fails or `owner`
  /// (the world rank that advances this counter) has left.
  void wait(uint32_t target, int owner, const Health& health);

 private:
  bool reached(uint32_t target) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

/// "why" of an exception, whatever its type.
std::string describe(const std::exception_ptr& failure);

}  // namespace moetrain::comm
