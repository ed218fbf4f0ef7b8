// Executor: plays one rank's plan on a device and a fabric. It decides nothing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/ledger.h"
#include "plan/plan.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/row_arena.h"
#include "runtime/zero_states.h"

namespace moetrain {

/// What one instruction did, in seconds of the steady clock. `exposed` is how long the compute lane stood
/// still for it: a transfer's wait, or all of a transfer that runs on the compute lane.
struct Executed {
  double begin = 0, end = 0, exposed = 0;
};

/// Receives what ran when (the trace and the timing table), in the order of the tape, from the executor's
/// thread, once the segment is over.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  virtual void ran(const Segment& segment, const Instruction& instruction, const Executed& times) = 0;
};

/// Seconds of communication by kind ("all_to_all_v ep"): under way, and of those not hidden.
struct CommSeconds {
  double total = 0, exposed = 0;
};

/// Owns all buffers of a plan and runs its segments. Not thread-safe. Creation is collective (groups).
class Executor {
 public:
  /// `plan`, `device` and `fabric` must outlive the executor.
  Executor(const Plan& plan, Device& device, Fabric& fabric, double ragged_headroom = 1.5);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Chooses, per frame group of the plan, whose micro-batch the next write, run and read are about. All
  /// groups start at frame 0. `back_frames` are those of side 1 of a merged segment.
  void enter(const std::vector<int>& frames, const std::vector<int>& back_frames = {});
  /// Runs one segment; returns when all its work is issued and the host has seen the last of it.
  void run(const std::string& segment);

  /// Host <-> device for a state, input or output (this rank's box, row-major, the slot's dtype).
  /// Blocking. `bytes` must be the slot's size.
  void write(const Port& port, const void* host, size_t bytes);
  void read(const Port& port, void* host, size_t bytes) const;
  const Port& state(const std::string& name) const;
  const Port& input(const std::string& name) const;
  const Port& output(const std::string& name) const;
  bool has_output(const std::string& name) const { return outputs_.count(name) > 0; }
  /// Makes a state zero.
  void clear(const Port& port);
  /// Element of a scalar output, as double.
  double scalar(const std::string& name) const;

  /// Rows bound to every extent the last time it was bound.
  const std::vector<int64_t>& extents() const { return rows_; }
  /// Device bytes held: arena, states, inputs, outputs, workspace, row arena (its peak).
  int64_t memory_bytes() const;
  /// Times the row arena had to grow beyond its planned capacity.
  int64_t row_arena_growths() const { return growths_; }
  /// What this rank really sent, by instruction, for exchanges whose sizes are only known when they run;
  /// since creation. (Of all others Plan's ledger is exact.)
  const std::map<std::string, LinkTraffic>& row_traffic() const { return row_traffic_; }
  /// Communication since the last call, by op and group.
  std::map<std::string, CommSeconds> take_comm_seconds();

  void observe(ExecutionObserver* observer) { observer_ = observer; }

 private:
  struct Prepared;
  struct Frame;

  void prepare(const Segment& segment, std::vector<Prepared>& out);
  void prepare_zero_states(const Instruction& instruction, Prepared& p);
  void keep_weights(const Launch& launch, const KernelChoice& kernel);
  void issue(const Instruction& instruction, Prepared& p, Lane& lane);
  void launch(const Launch& launch, Prepared& p, Lane& lane);
  void run_collective(const Collective& c, const Prepared& p, int side, Lane& lane);
  void run_bind(const Bind& bind, int side, Lane& lane);
  void account(const Segment& segment, const std::vector<Prepared>& prepared);
  std::byte* address(int slot, int side = 0) const;
  Tensor tensor(int slot, int side = 0) const;
  Frame& frame(int group, int side) const;

  const Plan& plan_;
  Device& device_;
  Fabric& fabric_;
  std::vector<std::byte*> owned_;
  std::vector<std::byte*> base_;  // per slot: address of roots outside frames
  std::vector<std::vector<std::unique_ptr<Frame>>> frames_;  // per group
  std::vector<int> entered_[2];                              // per side: per group
  std::byte* arena_ = nullptr;
  std::byte* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::unique_ptr<RowArena> row_arena_;
  std::unique_ptr<ZeroStates> zero_;
  std::vector<int64_t> rows_;  // per extent, as last bound
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::map<std::string, std::vector<Prepared>> prepared_;
  std::map<std::string, const Port*> states_, inputs_, outputs_;
  ExecutionObserver* observer_ = nullptr;
  std::map<std::string, LinkTraffic> row_traffic_;
  int64_t owned_bytes_ = 0, growths_ = 0;
  std::map<std::string, CommSeconds> comm_seconds_;
};

}  // namespace moetrain
