// Reductions of one group in a fixed order: inside each node first, then over the nodes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/comm/group.h"
#include "runtime/comm/reduce.h"

namespace moetrain::comm {

namespace {

constexpr int64_t kChunk = 2048;  // elements summed at a time: accumulators stay in the first-level cache

int64_t size_in(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

}  // namespace

// Every member copies, for each neighbour, the part of its data that neighbour is responsible for;
// then each sums its own part over the neighbours in their order.
void GroupCore::reduce_on_node(const Board::Header& header, const char* send,
                               const Streams& streams, const std::vector<Target>& targets,
                               DType dtype, ReduceOp op) {
  Board& board = *parts_.board;
  const int me = board.me(), r = board.members();
  const int64_t esize = size_in(dtype), stride = board.stride(), window = stride / esize;
  const DType acc_type = accumulator_of(dtype);
  int64_t longest = 0;
  for (int l = 0; l < r; ++l) {
    longest = std::max(longest, total_of(streams[l]));
    if (l != me) parts_.traffic->count(false, total_of(streams[l]) * esize);
  }
  const std::vector<Range>& mine = streams[me];
  std::vector<const char*> parts(r);
  alignas(64) char acc[kChunk * 8];

  for (int64_t begin = 0; begin < longest; begin += window) {
    char* part = board.open();
    for (int l = 0; l < r; ++l) {
      if (l == me) continue;
      walk(streams[l], begin, begin + window,
           [&](const Range& run, int64_t offset, int64_t at, int64_t n) {
             std::memcpy(part + l * stride + at * esize, send + (run.begin + offset) * esize,
                         n * esize);
           });
    }
    board.publish(header);
    for (int l = 0; l < r; ++l) {
      if (l == me) continue;
      board.verify(l);
      parts[l] = board.peer(l) + me * stride;
    }
    walk(mine, begin, begin + window, [&](const Range& run, int64_t offset, int64_t at, int64_t n) {
      const Target& target = targets[&run - mine.data()];
      for (int64_t c = 0; c < n; c += kChunk) {
        const int64_t k = std::min(kChunk, n - c);
        for (int l = 0; l < r; ++l) {
          const char* source = l == me ? send + (run.begin + offset + c) * esize
                                       : parts[l] + (at + c) * esize;
          if (l == 0) {
            accumulate_first(acc, source, k, dtype);
          } else {
            accumulate(acc, source, k, dtype, op);
          }
        }
        store_accumulated(target.data + (offset + c) * size_in(target.dtype), acc, k,
                          target.dtype == acc_type ? acc_type : dtype);
      }
      if (target.owner >= 0 && offset + n == run.size) {
        start_send(target.owner, target.data, run.size * size_in(target.dtype));
      }
    });
    board.close();
  }
}

void GroupCore::reduce_blocks(Verb verb, const void* send, const std::vector<Range>& blocks,
                              void* out, DType dtype, ReduceOp op) {
  const GroupShape& s = parts_.shape;
  const char* in = static_cast<const char*>(send);
  const Range& own = blocks[s.me];
  const int64_t esize = size_in(dtype);
  const char* own_in = in + own.begin * esize;
  if (s.size() == 1) {
    if (own.size > 0 && own_in != out) std::memcpy(out, own_in, own.size * esize);
    return;
  }

  const DType acc_type = accumulator_of(dtype);
  const int64_t asize = size_in(acc_type);
  const int nodes = static_cast<int>(s.nodes.size());
  const int here = s.node[s.me], place = s.local[s.me], r = members_on(here);
  // A node of one member has nothing to sum: its raw data travels, exact and for bf16 half as large.
  const auto wire_type = [&](int node) { return members_on(node) == 1 ? dtype : acc_type; };

  // The blocks each neighbour is responsible for: those of remote owners with a matching place, first
  // because they have the longer way, then its own.
  Streams streams(r);
  std::vector<int> owners;  // of my stream
  for (int k = 1; k < nodes; ++k) {
    for (int owner : s.nodes[(here + k) % nodes]) {
      streams[s.local[owner] % r].push_back(blocks[owner]);
      if (s.local[owner] % r == place) owners.push_back(owner);
    }
  }
  for (int l = 0; l < r; ++l) streams[l].push_back(blocks[s.nodes[here][l]]);
  owners.push_back(-1);

  const auto padded = [](int64_t n) { return (n + 63) / 64 * 64; };
  int64_t bytes = padded(own.size * asize) * (nodes - 1);
  for (const Range& run : streams[place]) bytes += padded(run.size * asize);
  if (nodes > 1 && static_cast<int64_t>(scratch_.size()) < bytes) scratch_.resize(bytes);
  char* next = scratch_.data();
  const auto take = [&](int64_t n) { return std::exchange(next, next + padded(n)); };

  std::vector<const char*> sums(nodes);  // each node's sum of my block
  for (int k = 1; k < nodes; ++k) {
    const int node = (here + nodes - k) % nodes;
    const int64_t n = own.size * size_in(wire_type(node));
    char* buffer = take(n);
    start_recv(s.nodes[node][place % members_on(node)], buffer, n);
    sums[node] = buffer;
  }
  if (r == 1) {
    for (size_t i = 0; i + 1 < owners.size(); ++i) {
      const Range& run = streams[0][i];
      start_send(owners[i], in + run.begin * esize, run.size * esize);
    }
    sums[here] = own_in;
  } else {
    std::vector<Target> targets;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (nodes == 1) {
        targets.push_back({static_cast<char*>(out), dtype, owners[i]});
      } else {
        targets.push_back({take(streams[place][i].size * asize), acc_type, owners[i]});
      }
    }
    const Board::Header header{
        static_cast<int32_t>(verb), static_cast<int32_t>(dtype) * 16 + static_cast<int32_t>(op),
        blocks.back().begin + blocks.back().size, 0};
    reduce_on_node(header, in, streams, targets, dtype, op);
    sums[here] = targets.back().data;
  }
  parts_.link->finish();
  if (nodes == 1) return;

  alignas(64) char acc[kChunk * 8];
  for (int64_t c = 0; c < own.size; c += kChunk) {
    const int64_t k = std::min(kChunk, own.size - c);
    for (int node = 0; node < nodes; ++node) {
      const DType type = wire_type(node);
      const char* source = sums[node] + c * size_in(type);
      if (node == 0) {
        accumulate_first(acc, source, k, type);
      } else {
        accumulate(acc, source, k, type, op);
      }
    }
    store_accumulated(static_cast<char*>(out) + c * esize, acc, k, dtype);
  }
}

void GroupCore::all_reduce(void* buffer, int64_t count, DType dtype, ReduceOp op) {
  // Shares of whole cache lines; the last ones may be short or empty.
  const int m = parts_.shape.size();
  const int64_t share = ((count + m - 1) / m + 31) / 32 * 32;
  const int64_t esize = size_in(dtype);
  std::vector<Range> elements(m), bytes(m);
  for (int i = 0; i < m; ++i) {
    const int64_t begin = std::min(count, i * share), end = std::min(count, begin + share);
    elements[i] = {begin, end - begin};
    bytes[i] = {begin * esize, (end - begin) * esize};
  }
  char* own = static_cast<char*>(buffer) + bytes[parts_.shape.me].begin;
  reduce_blocks(Verb::kAllReduce, buffer, elements, own, dtype, op);
  gather_blocks(Verb::kAllReduce, own, bytes, buffer);
}

}  // namespace moetrain::comm
