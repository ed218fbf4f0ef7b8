// The communicator waist: few asynchronous verbs on one group of ranks, issued to a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/lane.h"

namespace moetrain {

enum class ReduceOp { kSum, kMax };

/// Thrown out of a wait when another rank failed: a consequence, never the cause to show first.
class PeerFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What Fabric::abort throws when ranks are threads.
class JobAborted : public std::runtime_error {
 public:
  JobAborted(const std::string& message, int exit_code)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// One group of ranks, in a fixed order. Every verb is collective over the group, is issued to
/// `lane`, returns at once and runs in the lane's order; all ranks must issue the same verbs in the
/// same order on one communicator (verbs issued to different lanes run in the order of issue). Buffers
/// are device memory and must stay untouched until an event recorded after the verb is reached.
/// Reductions add in a fixed order, whatever arrives first, with float accumulation for bf16 and one
/// rounding: the same bits on every rank, every time. The order: on each node the members in group
/// order, then the nodes' sums in the order of their first member; so plain group order where a group
/// has one node, or one member per node. A maximum with a NaN is NaN.
/// Sizes are 64-bit bytes without limit; 0 is allowed everywhere. A failed peer makes the lane throw
/// PeerFailure; a lane that has thrown skips all later work. Lanes end before the fabric does.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank's place in the group, and the group's size.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// recv[i * bytes .. ) = send of group member i.
  virtual void all_gather(const void* send, void* recv, int64_t bytes, Lane& lane) = 0;
  /// send holds size() blocks of `count` elements; recv = sum over members of their block rank().
  virtual void reduce_scatter(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op,
                              Lane& lane) = 0;
  /// buffer = reduction over members, in place.
  virtual void all_reduce(void* buffer, int64_t count, DType dtype, ReduceOp op, Lane& lane) = 0;
  /// Block i of send goes to member i; block j of recv comes from member j. `bytes` per block.
  virtual void all_to_all(const void* send, void* recv, int64_t bytes, Lane& lane) = 0;
  /// Ragged: send_bytes[i] consecutive bytes of send go to member i (blocks back to back in member
  /// order), recv_bytes[j] arrive from member j (back to back). Both sides already know the sizes;
  /// no counts are exchanged. The vectors are copied.
  virtual void all_to_all_v(const void* send, const std::vector<int64_t>& send_bytes, void* recv,
                            const std::vector<int64_t>& recv_bytes, Lane& lane) = 0;
  /// Point to point inside the group; sends to and receives from one peer match in issue order. On
  /// host fabrics a send is buffered (done once the data is copied), so crossing sends cannot lock up.
  virtual void send(const void* data, int64_t bytes, int peer, Lane& lane) = 0;
  virtual void recv(void* data, int64_t bytes, int peer, Lane& lane) = 0;
  virtual void barrier(Lane& lane) = 0;
};

/// Payload bytes and messages this rank sent to other ranks since the start, per link class (a block
/// that k ranks of the node read from shared memory counts k times).
struct TrafficCounters {
  int64_t inter_node_bytes = 0, intra_node_bytes = 0;
  int64_t inter_node_messages = 0, intra_node_messages = 0;
};

/// All ranks of the job as one rank sees them. Makes communicators; carries host-side control data.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Index of the node (host) that holds `rank`, 0-based in order of first appearance. Respects
  /// `parallel.ranks_per_node` when given at creation.
  virtual int node_of(int rank) const = 0;

  /// A communicator over `ranks` (world ranks, this one among them), in that order. Collective over
  /// exactly those ranks; all must ask in the same order. `name` appears in traces and errors.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                                   const std::string& name) = 0;

  /// Blocking host-side control over all ranks (not for tensors): barrier, gather of byte strings
  /// in rank order on every rank, and the value of rank 0 on every rank.
  virtual void barrier() = 0;
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  virtual std::string broadcast(const std::string& value) = 0;
  /// The largest `value` over all ranks (flags, exit wishes).
  virtual int64_t max_over_ranks(int64_t value) = 0;

  virtual TrafficCounters traffic() const = 0;

  /// Ends the whole job with `exit_code` within seconds; the first caller's message is the one
  /// shown. Does not return for a real job; ranks as threads unwind by an exception instead.
  [[noreturn]] virtual void abort(const std::string& message, int exit_code) = 0;
};

/// A fabric of one rank without any launcher.
std::unique_ptr<Fabric> make_single_fabric();

/// Ranks as threads of this process (tests): runs `body(fabric of rank r)` on `size` threads, joins
/// them and rethrows the first failure (in time); the other ranks' waits throw PeerFailure.
/// `ranks_per_node` forms nodes; 0 = all on one.
void run_local_ranks(int size, int ranks_per_node, const std::function<void(Fabric&)>& body);

}  // namespace moetrain
