// Gathers, exchanges, messages and the barrier of one group: shared memory inside a node, messages between.
#include "runtime/comm/group.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/comm/walk.h"

namespace moetrain::comm {

GroupShape GroupShape::make(const std::vector<int>& ranks, int my_rank,
                            const std::vector<int>& node_of) {
  GroupShape shape;
  shape.ranks = ranks;
  shape.me = -1;
  std::vector<int> seen;  // job-wide node of each of the group's nodes
  for (int i = 0; i < shape.size(); ++i) {
    const int rank = ranks[i];
    MT_CHECK(rank >= 0 && rank < static_cast<int>(node_of.size()), "rank ", rank, " of group ",
             join(ranks, " "));
    MT_CHECK(std::count(ranks.begin(), ranks.end(), rank) == 1, "rank ", rank, " twice in group ",
             join(ranks, " "));
    if (rank == my_rank) shape.me = i;
    const auto found = std::find(seen.begin(), seen.end(), node_of[rank]);
    const int node = static_cast<int>(found - seen.begin());
    if (found == seen.end()) {
      seen.push_back(node_of[rank]);
      shape.nodes.emplace_back();
    }
    shape.node.push_back(node);
    shape.local.push_back(static_cast<int>(shape.nodes[node].size()));
    shape.nodes[node].push_back(i);
  }
  MT_CHECK(shape.me >= 0, "rank ", my_rank, " is not in group ", join(ranks, " "));
  return shape;
}

std::vector<int> GroupShape::neighbours() const {
  std::vector<int> result;
  for (int member : my_node()) result.push_back(ranks[member]);
  return result;
}

void Traffic::count(bool inter, int64_t bytes, int64_t messages) {
  if (bytes == 0) return;
  (inter ? inter_bytes : intra_bytes).fetch_add(bytes, std::memory_order_relaxed);
  (inter ? inter_messages : intra_messages).fetch_add(messages, std::memory_order_relaxed);
}

TrafficCounters Traffic::read() const {
  return {inter_bytes.load(), intra_bytes.load(), inter_messages.load(), intra_messages.load()};
}

GroupCore::GroupCore(GroupParts parts) : parts_(std::move(parts)) {
  MT_CHECK(parts_.link || parts_.shape.size() == 1, "group ", parts_.name, " without a link");
  MT_CHECK(parts_.board || parts_.shape.my_node().size() == 1, "group ", parts_.name,
           " without a board");
}

void GroupCore::start_send(int member, const void* data, int64_t bytes) {
  if (bytes == 0) return;
  const GroupShape& s = parts_.shape;
  parts_.traffic->count(s.node[member] != s.node[s.me], bytes);
  parts_.link->start_send(member, data, bytes);
}

void GroupCore::start_recv(int member, void* data, int64_t bytes) {
  if (bytes > 0) parts_.link->start_recv(member, data, bytes);
}

/// Every member of my node shows its stream (runs of `data`) to all others, who copy it to the same
/// place of theirs.
void GroupCore::share(const Board::Header& header, const Streams& streams, char* data) {
  Board& board = *parts_.board;
  const int me = board.me();
  int64_t longest = 0;
  for (const auto& stream : streams) longest = std::max(longest, total_of(stream));
  parts_.traffic->count(false, total_of(streams[me]) * (board.members() - 1), board.members() - 1);
  for (int64_t begin = 0; begin < longest; begin += board.part_bytes()) {
    const int64_t end = begin + board.part_bytes();
    char* part = board.open();
    walk(streams[me], begin, end, [&](const Range& run, int64_t offset, int64_t at, int64_t n) {
      std::memcpy(part + at, data + run.begin + offset, n);
    });
    board.publish(header);
    // start with the next member: all readers on one slot at once would share its cache lines
    for (int k = 1; k < board.members(); ++k) {
      const int j = (me + k) % board.members();
      board.verify(j);
      const char* theirs = board.peer(j);
      walk(streams[j], begin, end, [&](const Range& run, int64_t offset, int64_t at, int64_t n) {
        std::memcpy(data + run.begin + offset, theirs + at, n);
      });
    }
    board.close();
  }
}

void GroupCore::gather_blocks(Verb verb, const void* mine, const std::vector<Range>& blocks,
                              void* recv) {
  const GroupShape& s = parts_.shape;
  char* out = static_cast<char*>(recv);
  const Range& own = blocks[s.me];
  if (own.size > 0 && out + own.begin != mine) std::memcpy(out + own.begin, mine, own.size);
  if (s.size() == 1) return;

  const int nodes = static_cast<int>(s.nodes.size());
  const int here = s.node[s.me], place = s.local[s.me], r = members_on(here);
  // A remote block enters my node once, at the member whose place fits that of its owner.
  Streams own_streams(r), remote_streams(r);
  for (int l = 0; l < r; ++l) own_streams[l].push_back(blocks[s.nodes[here][l]]);
  for (int k = 1; k < nodes; ++k) {
    const int from = (here + nodes - k) % nodes, to = (here + k) % nodes;
    for (int member : s.nodes[from]) {
      if (s.local[member] % r != place) continue;
      start_recv(member, out + blocks[member].begin, blocks[member].size);
    }
    start_send(s.nodes[to][place % members_on(to)], out + own.begin, own.size);
  }
  for (int node = 0; node < nodes; ++node) {
    if (node == here) continue;
    for (int member : s.nodes[node]) remote_streams[s.local[member] % r].push_back(blocks[member]);
  }
  const Board::Header header{static_cast<int32_t>(verb), 0, blocks.back().begin + blocks.back().size,
                             0};
  if (r > 1) share(header, own_streams, out);  // while the messages travel
  parts_.link->finish();
  if (r > 1 && nodes > 1) share(header, remote_streams, out);
}

void GroupCore::exchange(Verb verb, const void* send, const std::vector<int64_t>& send_bytes,
                         void* recv, const std::vector<int64_t>& recv_bytes) {
  const GroupShape& s = parts_.shape;
  const int m = s.size();
  std::vector<const char*> from(m);
  std::vector<char*> to(m);
  const char* next_out = static_cast<const char*>(send);
  char* next_in = static_cast<char*>(recv);
  for (int i = 0; i < m; ++i) {
    from[i] = next_out;
    to[i] = next_in;
    next_out += send_bytes[i];
    next_in += recv_bytes[i];
  }
  MT_CHECK(send_bytes[s.me] == recv_bytes[s.me], "group ", parts_.name, ": ", send_bytes[s.me],
           " bytes to itself, ", recv_bytes[s.me], " from itself");
  if (send_bytes[s.me] > 0) std::memcpy(to[s.me], from[s.me], send_bytes[s.me]);
  if (m == 1) return;

  const int here = s.node[s.me];
  for (int k = 1; k < m; ++k) {
    const int source = (s.me + m - k) % m, target = (s.me + k) % m;
    if (s.node[source] != here) start_recv(source, to[source], recv_bytes[source]);
    if (s.node[target] != here) start_send(target, from[target], send_bytes[target]);
  }
  if (parts_.board) {
    // Each member's part is divided among the readers; a reader's share of the first step starts
    // with the block's size, so that a disagreement is found before it does harm.
    Board& board = *parts_.board;
    const std::vector<int>& neighbours = s.my_node();
    const int64_t stride = board.stride(), room = stride - 64;
    int64_t steps = 1;
    for (int member : neighbours) {
      if (member == s.me) continue;
      steps = std::max(steps, (send_bytes[member] + room - 1) / room);
      parts_.traffic->count(false, send_bytes[member]);
    }
    const Board::Header header{static_cast<int32_t>(verb), 0, 0, steps};
    for (int64_t step = 0; step < steps; ++step) {
      char* part = board.open();
      for (int j = 0; j < board.members(); ++j) {
        if (j == board.me()) continue;
        const int member = neighbours[j];
        std::memcpy(part + j * stride, &send_bytes[member], sizeof(int64_t));
        const int64_t n = std::min(room, send_bytes[member] - step * room);
        if (n > 0) std::memcpy(part + j * stride + 64, from[member] + step * room, n);
      }
      board.publish(header);
      for (int k = 1; k < board.members(); ++k) {
        const int j = (board.me() + k) % board.members(), member = neighbours[j];
        const int64_t theirs = board.verify(j);
        const char* share = board.peer(j) + board.me() * stride;
        int64_t announced;
        std::memcpy(&announced, share, sizeof announced);
        MT_CHECK(announced == recv_bytes[member], "group ", parts_.name, ": rank ", s.ranks[member],
                 " sends ", announced, " bytes, rank ", s.ranks[s.me], " expects ",
                 recv_bytes[member]);
        steps = std::max(steps, theirs);
        const int64_t n = std::min(room, recv_bytes[member] - step * room);
        if (n > 0) std::memcpy(to[member] + step * room, share + 64, n);
      }
      board.close();
    }
  }
  parts_.link->finish();
}

void GroupCore::send(const void* data, int64_t bytes, int peer) {
  const GroupShape& s = parts_.shape;
  MT_CHECK(peer >= 0 && peer < s.size() && peer != s.me, "send to member ", peer, " of ", s.size());
  if (bytes == 0) return;
  parts_.traffic->count(s.node[peer] != s.node[s.me], bytes);
  parts_.link->send_buffered(peer, data, bytes);
}

void GroupCore::recv(void* data, int64_t bytes, int peer) {
  const GroupShape& s = parts_.shape;
  MT_CHECK(peer >= 0 && peer < s.size() && peer != s.me, "receive from member ", peer, " of ",
           s.size());
  start_recv(peer, data, bytes);
  parts_.link->finish();
}

void GroupCore::barrier() {
  const GroupShape& s = parts_.shape;
  if (s.size() == 1) return;
  const Board::Header header{static_cast<int32_t>(Verb::kBarrier), 0, 0, 0};
  const auto meet = [&] {
    if (!parts_.board) return;
    Board& board = *parts_.board;
    board.open();
    board.publish(header);
    for (int j = 0; j < board.members(); ++j) {
      if (j != board.me()) board.verify(j);
    }
    board.close();
  };
  meet();
  if (s.nodes.size() == 1) return;
  if (s.local[s.me] == 0) {
    char token = 0;
    std::vector<char> tokens(s.nodes.size());
    for (size_t node = 0; node < s.nodes.size(); ++node) {
      const int leader = s.nodes[node][0];
      if (leader == s.me) continue;
      parts_.link->start_recv(leader, &tokens[node], 1);
      parts_.link->start_send(leader, &token, 1);
    }
    parts_.link->finish();
  }
  meet();  // the others of my node wait for its leader
}

}  // namespace moetrain::comm
