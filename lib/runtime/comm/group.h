// One communicator for every host fabric: the algorithms over a board (inside a node) and a link (between).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/board.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/link.h"
#include "runtime/comm/verb.h"
#include "runtime/comm/wait.h"
#include "runtime/comm/walk.h"

namespace moetrain::comm {

/// Where the members of a group live. Node indices are the group's own, in order of first member.
struct GroupShape {
  std::vector<int> ranks;               // world ranks in group order
  int me = 0;                           // this rank's place
  std::vector<int> node;                // of each member
  std::vector<int> local;               // each member's place among its node's members
  std::vector<std::vector<int>> nodes;  // members of each node, in group order

  /// `ranks` must be distinct and hold `my_rank`; `node_of[r]` is the node of world rank r.
  static GroupShape make(const std::vector<int>& ranks, int my_rank,
                         const std::vector<int>& node_of);
  int size() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& my_node() const { return nodes[node[me]]; }
  /// World ranks of the members on my node.
  std::vector<int> neighbours() const;
};

/// Counters of one rank, shared by its communicators.
struct Traffic {
  std::atomic<int64_t> inter_bytes{0}, intra_bytes{0}, inter_messages{0}, intra_messages{0};
  void count(bool inter, int64_t bytes, int64_t messages = 1);
  TrafficCounters read() const;
};

/// What a group's verbs need; shared with the work in flight, which may outlive the communicator.
struct GroupParts {
  GroupShape shape;
  std::string name;
  std::shared_ptr<Health> health;
  std::shared_ptr<Traffic> traffic;
  std::shared_ptr<void> board_memory;  // null when alone on the node
  std::unique_ptr<Board> board;        // null when alone on the node
  std::unique_ptr<Link> link;          // null in a group of one
};

/// The verbs, blocking, in the caller's thread. One call at a time.
class GroupCore {
 public:
  explicit GroupCore(GroupParts parts);
  const GroupShape& shape() const { return parts_.shape; }
  Health& health() const { return *parts_.health; }
  const std::string& name() const { return parts_.name; }

  /// recv[blocks[i]) = block of member i; `mine` holds this rank's. Ranges are bytes of recv, the
  /// same on all members.
  void gather_blocks(Verb verb, const void* mine, const std::vector<Range>& blocks, void* recv);
  /// out = reduction over members of their send[blocks[me]). Ranges are elements of send, the same on
  /// all members. `out` may be that very place.
  void reduce_blocks(Verb verb, const void* send, const std::vector<Range>& blocks, void* out,
                     DType dtype, ReduceOp op);
  void all_reduce(void* buffer, int64_t count, DType dtype, ReduceOp op);
  void exchange(Verb verb, const void* send, const std::vector<int64_t>& send_bytes, void* recv,
                const std::vector<int64_t>& recv_bytes);
  void send(const void* data, int64_t bytes, int peer);
  void recv(void* data, int64_t bytes, int peer);
  void barrier();

 private:
  using Streams = std::vector<std::vector<Range>>;  // per member of my node: runs back to back
  void share(const Board::Header& header, const Streams& streams, char* data);
  void start_send(int member, const void* data, int64_t bytes);
  void start_recv(int member, void* data, int64_t bytes);
  /// My node's sums of the runs I am responsible for: run i lands in targets[i].
  struct Target {
    char* data;
    DType dtype;  // the reduction's own, or its accumulator
    int owner;    // another node's member to send it to once complete, or -1
  };
  void reduce_on_node(const Board::Header& header, const char* send, const Streams& streams,
                      const std::vector<Target>& targets, DType dtype, ReduceOp op);
  int members_on(int node) const { return static_cast<int>(parts_.shape.nodes[node].size()); }

  GroupParts parts_;
  std::vector<char> scratch_;
};

/// The asynchronous face: issues a core's verbs to host lanes.
std::unique_ptr<Communicator> make_group_communicator(std::shared_ptr<GroupCore> core);

}  // namespace moetrain::comm
