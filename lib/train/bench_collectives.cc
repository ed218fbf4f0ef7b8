// Times the communicator's verbs.
#include "train/bench_collectives.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "runtime/device/device.h"
#include "train/bench_tools.h"

namespace moetrain {

LinkFit fit_link(const std::vector<std::pair<double, double>>& points) {
  // minimises sum ((a + b * bytes) / seconds - 1)^2: normal equations in weights 1 / seconds
  double ww = 0, wn = 0, nn = 0, w = 0, n = 0;
  for (const auto& [bytes, seconds] : points) {
    const double one = 1 / seconds, size = bytes / seconds;
    ww += one * one;
    wn += one * size;
    nn += size * size;
    w += one;
    n += size;
  }
  const double det = ww * nn - wn * wn;
  MT_CHECK(det > 0, "a link is fitted through ", points.size(), " points of equal size");
  const double a = (w * nn - n * wn) / det, b = (n * ww - w * wn) / det;
  LinkFit fit;
  fit.latency = std::max(a, 1e-7);
  // noise can tilt the line; then the largest message alone says what the link moves
  const auto& largest = *std::max_element(points.begin(), points.end());
  fit.bandwidth = b > 0 ? 1 / b : largest.first / largest.second;
  return fit;
}

namespace {

constexpr int64_t kPingSizes[] = {64, 64 << 10, 4 << 20};

class CollectivesBench {
 public:
  CollectivesBench(Fabric& fabric, const BenchCollectivesOptions& options)
      : fabric_(fabric), options_(options), device_(make_cpu_device({})), lane_(device_->lane(0)) {}

  CollectivesReport run() {
    if (fabric_.size() == 1) {
      report_.text = "links: one rank has none; start under mpirun to measure them\n";
      return std::move(report_);
    }
    report_.intra = link("intra-node", true);
    report_.inter = link("inter-node", false);
    std::vector<int> all(fabric_.size());
    std::iota(all.begin(), all.end(), 0);
    group_ = fabric_.make_group(all, "bench");
    report_.text += format_line("\n%-15s %12s %12s %10s   %d ranks, median of %d\n", "collective",
                                "bytes sent", "us", "GB/s", fabric_.size(), options_.repeats);
    for (int64_t bytes : options_.sizes) verbs(bytes);
    return std::move(report_);
  }

 private:
  /// Who `rank` plays with: its neighbour on its node, or the rank of its place on the neighbouring node;
  /// -1 if there is none.
  int partner(int rank, bool same_node) const {
    const int node = fabric_.node_of(rank), wanted = same_node ? node : node ^ 1;
    std::vector<int> mine, theirs;
    for (int r = 0; r < fabric_.size(); ++r) {
      if (fabric_.node_of(r) == node) mine.push_back(r);
      if (fabric_.node_of(r) == wanted) theirs.push_back(r);
    }
    size_t place = std::find(mine.begin(), mine.end(), rank) - mine.begin();
    if (same_node) place ^= 1;
    return place < theirs.size() ? theirs[place] : -1;
  }

  /// Half of a round trip between two ranks at three sizes, while all ranks that have a partner play: what
  /// one rank gets of links that several share. None if rank 0 has no partner.
  std::optional<LinkFit> link(const char* name, bool same_node) {
    if (partner(0, same_node) < 0) return std::nullopt;
    const int me = fabric_.rank(), other = partner(me, same_node);
    const bool plays = other >= 0;
    std::unique_ptr<Communicator> pair;
    if (plays) pair = fabric_.make_group({std::min(me, other), std::max(me, other)}, "bench pair");
    std::vector<std::byte> buffer(kPingSizes[2]);
    std::vector<std::pair<double, double>> points;
    for (int64_t bytes : kPingSizes) {
      constexpr int kTrips = 8;
      const double seconds = timed_together(fabric_, options_.repeats, [&] {
        for (int i = 0; plays && i < kTrips; ++i) {
          if (pair->rank() == 0) {
            pair->send(buffer.data(), bytes, 1, lane_);
            pair->recv(buffer.data(), bytes, 1, lane_);
          } else {
            pair->recv(buffer.data(), bytes, 0, lane_);
            pair->send(buffer.data(), bytes, 0, lane_);
          }
        }
        lane_.synchronize();
      });
      points.emplace_back(static_cast<double>(bytes), seconds / (2 * kTrips));
    }
    const LinkFit fit = fit_link(points);
    report_.text += format_line("%s link, ranks 0 and %d while all pairs play:", name,
                                partner(0, same_node));
    for (const auto& [bytes, seconds] : points) {
      report_.text += cat(" ", human_bytes(bytes), format_line(" %.1f us,", seconds * 1e6));
    }
    report_.text += format_line(" so %.2f us + bytes / %.2f GB/s\n", fit.latency * 1e6,
                                fit.bandwidth / 1e9);
    return fit;
  }

  void row(const char* name, int64_t sent, const std::function<void()>& call) {
    const double seconds = timed_together(fabric_, options_.repeats, [&] {
      call();
      lane_.synchronize();
    });
    report_.text += format_line("%-15s %12lld %12.1f %10.2f\n", name, static_cast<long long>(sent),
                                seconds * 1e6, static_cast<double>(sent) / seconds / 1e9);
  }

  /// Every verb at sizes with which a rank sends about `bytes` to others.
  void verbs(int64_t bytes) {
    const int n = group_->size(), me = group_->rank();
    const int64_t block = std::max<int64_t>(4, bytes / (n - 1) / 4 * 4), count = block / 4;
    std::vector<float> send(count * n, 1.0f), recv(count * n * 2);
    row("all_gather", block * (n - 1),
        [&] { group_->all_gather(send.data(), recv.data(), block, lane_); });
    row("reduce_scatter", block * (n - 1), [&] {
      group_->reduce_scatter(send.data(), recv.data(), count, DType::kF32, ReduceOp::kSum, lane_);
    });
    // a sum of as many bytes, finished on every rank: scattered once, gathered once
    row("all_reduce", 2 * block * (n - 1), [&] {
      group_->all_reduce(recv.data(), count * n, DType::kF32, ReduceOp::kMax, lane_);
    });
    row("all_to_all", block * (n - 1),
        [&] { group_->all_to_all(send.data(), recv.data(), block, lane_); });
    // unlike blocks, as routing makes them: half, one, one and a half times the even one
    std::vector<int64_t> out(n), in(n);
    int64_t sent = 0, total_out = 0, total_in = 0;
    auto part = [&](int from, int to) { return count * (1 + (from + 2 * to) % 3) / 2 * 4; };
    for (int r = 0; r < n; ++r) {
      total_out += out[r] = part(me, r);
      total_in += in[r] = part(r, me);
      if (r != me) sent += out[r];
    }
    send.resize(total_out / 4);
    recv.resize(std::max<size_t>(recv.size(), total_in / 4));
    row("all_to_all_v", sent,
        [&] { group_->all_to_all_v(send.data(), out, recv.data(), in, lane_); });
  }

  Fabric& fabric_;
  const BenchCollectivesOptions options_;
  std::unique_ptr<Device> device_;
  Lane& lane_;
  std::unique_ptr<Communicator> group_;
  CollectivesReport report_;
};

}  // namespace

CollectivesReport bench_collectives(Fabric& fabric, const BenchCollectivesOptions& options) {
  return CollectivesBench(fabric, options).run();
}

}  // namespace moetrain
