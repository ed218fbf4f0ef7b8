// Lanes and events: the in-order queues of one rank that the executor issues work to.
#pragma once

#include <functional>
#include <memory>

namespace moetrain {

/// A point in a lane's work. Cheap to copy; an empty Event counts as reached.
class Event {
 public:
  /// What a device keeps per event.
  struct State {
    virtual ~State() = default;
    /// True once all work before the event is done. Never blocks.
    virtual bool reached() const = 0;
    /// Blocks the calling host thread until reached; rethrows what failed on the lane before it.
    virtual void host_wait() const = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  bool reached() const { return !state_ || state_->reached(); }
  void host_wait() const {
    if (state_) state_->host_wait();
  }
  const State* state() const { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

/// One in-order queue of device work (a stream). Work on different lanes runs side by side; order
/// between lanes is made only by record() and wait(). Used from the executor's thread alone.
class Lane {
 public:
  virtual ~Lane() = default;
  /// An event that is reached when everything issued so far on this lane is done. Does not block.
  virtual Event record() = 0;
  /// Later work on this lane starts only after `event`. A device need not block the host for it.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until the lane is idle; rethrows what failed on it.
  virtual void synchronize() = 0;
};

/// A lane of a device that shares memory with the host: work is host functions.
class HostLane : public Lane {
 public:
  /// Issues `work`. An inline lane runs it now, in the caller's thread; a threaded lane runs it on
  /// its own thread, in order. An exception thrown by `work` surfaces at the next synchronize().
  virtual void post(std::function<void()> work) = 0;
};

/// A lane that runs everything at once in the caller's thread (the compute lane of the CPU).
std::unique_ptr<HostLane> make_inline_lane();
/// A lane with one thread of its own (a communication lane of the CPU).
std::unique_ptr<HostLane> make_threaded_lane();

}  // namespace moetrain
