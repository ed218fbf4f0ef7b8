// The verbs' promises as code that any fabric can run.
#include "comm/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "base/dtype.h"
#include "base/random.h"
#include "base/tensor.h"
#include "base/text.h"

namespace moetrain::test {

namespace {

template <class... Args>
void expect(bool condition, const Args&... args) {
  if (!condition) throw std::runtime_error(cat("conformance: ", args...));
}

/// The byte at `i` that `from` sends to `to`.
unsigned char byte_of(int from, int to, int64_t i) {
  return static_cast<unsigned char>(from * 131 + to * 17 + i * 7 + (i >> 8));
}

/// A group and this rank's view of it.
struct Case {
  Communicator& comm;
  Lane& lane;
  std::string name;
  int me() const { return comm.rank(); }
  int m() const { return comm.size(); }
};

void check_all_gather(const Case& c, int64_t n) {
  std::vector<unsigned char> mine(n), all(n * c.m(), 0xee);
  for (int64_t i = 0; i < n; ++i) mine[i] = byte_of(c.me(), 0, i);
  c.comm.all_gather(mine.data(), all.data(), n, c.lane);
  c.lane.synchronize();
  for (int j = 0; j < c.m(); ++j) {
    for (int64_t i = 0; i < n; ++i) {
      expect(all[j * n + i] == byte_of(j, 0, i), c.name, " all_gather ", n, " member ", j, " byte ", i);
    }
  }
  // in place
  std::vector<unsigned char> placed(n * c.m(), 0xee);
  if (n > 0) std::memcpy(placed.data() + c.me() * n, mine.data(), n);
  c.comm.all_gather(placed.data() + c.me() * n, placed.data(), n, c.lane);
  c.lane.synchronize();
  expect(placed == all, c.name, " all_gather in place ", n);
}

void check_all_to_all(const Case& c, int64_t n) {
  std::vector<unsigned char> out(n * c.m()), in(n * c.m(), 0xee);
  for (int j = 0; j < c.m(); ++j) {
    for (int64_t i = 0; i < n; ++i) out[j * n + i] = byte_of(c.me(), j, i);
  }
  c.comm.all_to_all(out.data(), in.data(), n, c.lane);
  c.lane.synchronize();
  for (int j = 0; j < c.m(); ++j) {
    for (int64_t i = 0; i < n; ++i) {
      expect(in[j * n + i] == byte_of(j, c.me(), i), c.name, " all_to_all ", n, " from ", j);
    }
  }
}

/// Ragged sizes: some pairs exchange nothing, member `silent` receives nothing at all.
void check_all_to_all_v(const Case& c, int64_t scale, int silent) {
  const auto size = [&](int from, int to) -> int64_t {
    if (to == silent || (from + 2 * to) % 3 == 1) return 0;
    return scale * ((from * 5 + to * 3) % 7) + from + to;
  };
  std::vector<int64_t> send_bytes, recv_bytes;
  std::vector<unsigned char> out;
  for (int j = 0; j < c.m(); ++j) {
    send_bytes.push_back(size(c.me(), j));
    recv_bytes.push_back(size(j, c.me()));
    for (int64_t i = 0; i < send_bytes.back(); ++i) out.push_back(byte_of(c.me(), j, i));
  }
  const int64_t total = std::accumulate(recv_bytes.begin(), recv_bytes.end(), int64_t{0});
  std::vector<unsigned char> in(total, 0xee);
  c.comm.all_to_all_v(out.data(), send_bytes, in.data(), recv_bytes, c.lane);
  c.lane.synchronize();
  int64_t at = 0;
  for (int j = 0; j < c.m(); ++j) {
    for (int64_t i = 0; i < recv_bytes[j]; ++i) {
      expect(in[at++] == byte_of(j, c.me(), i), c.name, " all_to_all_v scale ", scale, " from ", j);
    }
  }
}

/// Small whole numbers: exact in every type, so any order gives the same sum.
double value_of(int member, int64_t i) { return static_cast<double>((member * 3 + i * 5) % 11) - 5; }

double expected(int m, int64_t i, ReduceOp op) {
  double result = value_of(0, i);
  for (int j = 1; j < m; ++j) {
    const double v = value_of(j, i);
    result = op == ReduceOp::kSum ? result + v : std::max(result, v);
  }
  return result;
}

void check_reductions(const Case& c, int64_t count, DType dtype, ReduceOp op) {
  const int64_t size = static_cast<int64_t>(size_of(dtype)), all = count * c.m();
  std::vector<char> send(all * size + 1), recv(count * size + 1, 0x77);
  Tensor in{send.data(), dtype, {all}}, out{recv.data(), dtype, {count}};
  for (int64_t i = 0; i < all; ++i) set_element(in, i, value_of(c.me(), i));
  c.comm.reduce_scatter(send.data(), recv.data(), count, dtype, op, c.lane);
  c.comm.all_reduce(send.data(), all, dtype, op, c.lane);
  c.lane.synchronize();
  for (int64_t i = 0; i < count; ++i) {
    const double want = expected(c.m(), c.me() * count + i, op);
    expect(get_element(out, i) == want, c.name, " reduce_scatter ", name_of(dtype), " ", count,
           " element ", i, ": ", get_element(out, i), " != ", want);
  }
  expect(recv[count * size] == 0x77, c.name, " reduce_scatter wrote past its end");
  for (int64_t i = 0; i < all; ++i) {
    const double want = expected(c.m(), i, op);
    expect(get_element(in, i) == want, c.name, " all_reduce ", name_of(dtype), " ", all,
           " element ", i, ": ", get_element(in, i), " != ", want);
  }
}

void check_nan_maximum(const Case& c) {
  float values[3] = {1.0f + c.me(), c.me() == 0 ? NAN : 1.0f, c.me() == c.m() - 1 ? NAN : 1.0f};
  c.comm.all_reduce(values, 3, DType::kF32, ReduceOp::kMax, c.lane);
  c.lane.synchronize();
  expect(values[0] == c.m() && std::isnan(values[1]) && std::isnan(values[2]), c.name, " max with NaN");
}

/// Everybody sends to everybody before anybody receives: crossing sends must not lock up.
void check_messages(const Case& c, int64_t n) {
  std::vector<std::vector<unsigned char>> out(c.m()), in(c.m());
  for (int round = 0; round < 2; ++round) {
    for (int j = 0; j < c.m(); ++j) {
      if (j == c.me()) continue;
      out[j].resize(n);
      for (int64_t i = 0; i < n; ++i) out[j][i] = byte_of(c.me() + round, j, i);
      c.comm.send(out[j].data(), n, j, c.lane);
    }
    c.lane.synchronize();
    for (auto& o : out) std::fill(o.begin(), o.end(), 0);  // the data must have been taken
  }
  for (int round = 0; round < 2; ++round) {
    for (int j = 0; j < c.m(); ++j) {
      if (j == c.me()) continue;
      in[j].assign(n, 0xee);
      c.comm.recv(in[j].data(), n, j, c.lane);
    }
    c.lane.synchronize();
    for (int j = 0; j < c.m(); ++j) {
      for (int64_t i = 0; i < static_cast<int64_t>(in[j].size()); ++i) {
        expect(in[j][i] == byte_of(j + round, c.me(), i), c.name, " message ", round, " from ", j);
      }
    }
  }
}

/// Sizes around those of the board's parts; `large` ones wrap around its ring.
void check_group(const Case& c, bool large) {
  for (int64_t n : {0, 1, 13, 4099, 300'007}) check_all_gather(c, n);
  if (large) check_all_gather(c, 1'200'003);
  for (int64_t n : {0, 1, 63, 4099}) check_all_to_all(c, n);
  if (large) check_all_to_all(c, 300'007);
  for (int64_t scale : {0, 1, 1001}) check_all_to_all_v(c, scale, scale == 1 ? 0 : c.m() - 1);
  if (large) check_all_to_all_v(c, 150'001, c.m() - 1);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int64_t count : {0, 1, 7, 1033}) check_reductions(c, count, dtype, op);
    }
    if (large) check_reductions(c, 100'003, dtype, ReduceOp::kSum);
  }
  check_nan_maximum(c);
  for (int64_t n : {0, 5, 100'003}) check_messages(c, n);
  for (int i = 0; i < 10; ++i) c.comm.barrier(c.lane);
  c.lane.synchronize();
}

std::vector<int> every(int first, int stride, int size) {
  std::vector<int> ranks;
  for (int r = first; r < size; r += stride) ranks.push_back(r);
  return ranks;
}

void check_control(Fabric& fabric) {
  const int n = fabric.size(), me = fabric.rank();
  fabric.barrier();
  const std::vector<std::string> all = fabric.gather(std::string(me * 1000, static_cast<char>('a' + me % 26)));
  expect(static_cast<int>(all.size()) == n, "gather");
  for (int r = 0; r < n; ++r) {
    expect(all[r] == std::string(r * 1000, static_cast<char>('a' + r % 26)), "gather of rank ", r);
  }
  const std::string plan(700'001, 'p');
  expect(fabric.broadcast(me == 0 ? plan : "ignored") == plan, "broadcast");
  expect(fabric.broadcast(me == 0 ? "" : "ignored").empty(), "empty broadcast");
  expect(fabric.max_over_ranks(-5 - me) == -5, "max_over_ranks");
  expect(fabric.max_over_ranks(me == n - 1 ? (int64_t{1} << 40) : 0) == int64_t{1} << 40, "large maximum");
}

}  // namespace

void check_fabric(Fabric& fabric) {
  const int n = fabric.size(), me = fabric.rank();
  check_control(fabric);
  const auto inline_lane = make_inline_lane();
  const auto first = make_threaded_lane(), second = make_threaded_lane();

  const auto world = fabric.make_group(every(0, 1, n), "world");
  check_group({*world, *inline_lane, "world inline"}, false);
  check_group({*world, *first, "world threaded"}, true);

  // even and odd ranks at the same time, then a group in descending order
  const auto parity = fabric.make_group(every(me % 2, 2, n), "parity");
  check_group({*parity, *second, "parity"}, true);
  std::vector<int> descending = every(0, 1, n);
  std::reverse(descending.begin(), descending.end());
  const auto reversed = fabric.make_group(descending, "reversed");
  expect(reversed->rank() == n - 1 - me, "place in reversed group");
  check_group({*reversed, *first, "reversed"}, false);
  const auto alone = fabric.make_group({me}, "alone");
  check_group({*alone, *second, "alone"}, false);

  // two groups on two lanes side by side, joined by events; one group on two lanes keeps its order
  std::vector<float> a(50'001, 1.0f), b(40'001, static_cast<float>(me));
  for (int round = 0; round < 5; ++round) {
    world->all_reduce(a.data(), 50'001, DType::kF32, ReduceOp::kMax, *first);
    parity->all_reduce(b.data(), 40'001, DType::kF32, ReduceOp::kMax, *second);
    second->wait(first->record());
    first->wait(second->record());
    world->all_reduce(b.data(), 40'001, DType::kF32, ReduceOp::kMax, *(round % 2 ? first : second));
    first->wait(second->record());
    second->wait(first->record());
  }
  first->synchronize();
  second->synchronize();
  expect(a[50'000] == 1.0f && b[40'000] == n - 1, "lanes side by side");
  expect(n == 1 || fabric.traffic().inter_node_bytes + fabric.traffic().intra_node_bytes > 0, "traffic");
  fabric.barrier();
}

void check_summation_order(Fabric& fabric) {
  const int n = fabric.size(), me = fabric.rank();
  const int64_t count = 5'003;
  const auto world = fabric.make_group(every(0, 1, n), "world");
  const auto lane = make_threaded_lane();
  const auto value = [](int rank, int64_t i) {
    const CounterRandom random(7, cat("rank", rank));
    return static_cast<float>(std::ldexp(random.normal(i), static_cast<int>(random.bits(i + 99) % 24)));
  };
  std::vector<std::vector<float>> in(n, std::vector<float>(count));
  for (int r = 0; r < n; ++r) {
    for (int64_t i = 0; i < count; ++i) in[r][i] = value(r, i);
  }
  int nodes = 0;
  for (int r = 0; r < n; ++r) nodes = std::max(nodes, fabric.node_of(r) + 1);
  const auto sum_of = [&](int64_t i, bool bf16) {
    std::vector<float> sums(nodes);
    std::vector<bool> begun(nodes);
    for (int r = 0; r < n; ++r) {
      const float v = bf16 ? bf16_to_float(float_to_bf16(in[r][i])) : in[r][i];
      const int node = fabric.node_of(r);
      sums[node] = begun[node] ? sums[node] + v : v;
      begun[node] = true;
    }
    float total = sums[0];
    for (int node = 1; node < nodes; ++node) total += sums[node];
    return total;
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<float> values = in[me];
    std::vector<uint16_t> halves(count);
    for (int64_t i = 0; i < count; ++i) halves[i] = float_to_bf16(in[me][i]);
    world->all_reduce(values.data(), count, DType::kF32, ReduceOp::kSum, *lane);
    world->all_reduce(halves.data(), count, DType::kBF16, ReduceOp::kSum, *lane);
    lane->synchronize();
    for (int64_t i = 0; i < count; ++i) {
      expect(values[i] == sum_of(i, false), "order of f32 sum at ", i);
      expect(halves[i] == float_to_bf16(sum_of(i, true)), "order of bf16 sum at ", i);
    }
  }
  fabric.barrier();
}

void check_huge_message(Fabric& fabric) {
  const int last = fabric.size() - 1;
  const int64_t bytes = (int64_t{1} << 31) + 4097;
  const auto pair = fabric.make_group(every(0, 1, fabric.size()), "world");
  const auto lane = make_inline_lane();
  std::vector<int64_t> sends(fabric.size(), 0), recvs(fabric.size(), 0);
  std::vector<char> out, in;
  if (fabric.rank() == 0) {
    sends[last] = bytes;
    out.assign(bytes, 3);
    out[bytes - 1] = 5;
  }
  if (fabric.rank() == last) {
    recvs[0] = bytes;
    in.assign(bytes, 0);
  }
  pair->all_to_all_v(out.data(), sends, in.data(), recvs, *lane);
  lane->synchronize();
  if (fabric.rank() == last) {
    expect(in[0] == 3 && in[bytes - 2] == 3 && in[bytes - 1] == 5, "message above 2^31 bytes");
  }
  fabric.barrier();
}

}  // namespace moetrain::test
