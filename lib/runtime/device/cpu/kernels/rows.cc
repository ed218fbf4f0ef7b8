// Token rows on their way to other ranks: counting, gathering, regrouping as block copies by all
// workers.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/device/cpu/kernels/families.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Bytes one task copies, about.
constexpr int64_t kTaskBytes = 1 << 17;

int64_t line_bytes(const Tensor& rows) {
  return rows.cols() * static_cast<int64_t>(size_of(rows.dtype));
}
int64_t rows_per_task(int64_t line) {
  return std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(1, line));
}

bool always(const Attrs&, Types, Types) { return true; }

// dispatch_count ---------------------------------------------------------------------------------

int64_t highest_expert(const Attrs& attrs) {
  int64_t end = 0;
  for (int64_t first : attrs.integers("first_experts")) end = std::max(end, first);
  return end + attrs.integer("local_experts");
}

int64_t chunks_of(int threads) { return 2 * threads; }

size_t count_workspace(const Attrs& attrs, Types, Types out, int threads) {
  const int64_t bins = numel(out[1].shape);
  return kCarverSlack + round_up_64(highest_expert(attrs) * sizeof(int32_t)) +
         round_up_64((bins + 1) * chunks_of(threads) * sizeof(int32_t));
}

// Stable counting sort: every chunk of slots counts for itself, offsets follow bin by bin and chunk
// by chunk, every chunk places its own. The result does not depend on the number of chunks.
void run_dispatch_count(const LaunchArgs& args) {
  const auto& first = args.attrs.integers("first_experts");
  const int64_t local = args.attrs.integer("local_experts"), bins = args.out[1].numel();
  const int64_t slots = args.in[0].numel(), limit = highest_expert(args.attrs);
  const int32_t* idx = args.in[0].as<const int32_t>();
  int32_t* offsets = args.out[0].as<int32_t>();
  int32_t* source = offsets + bins + 1;
  int32_t* counts = args.out[1].as<int32_t>();

  Carver carver(args);
  int32_t* bin_of = carver.take<int32_t>(limit);
  std::fill(bin_of, bin_of + limit, static_cast<int32_t>(bins));  // the last bin is dropped
  for (size_t m = 0; m < first.size(); ++m) {
    for (int64_t e = 0; e < local; ++e) {
      bin_of[first[m] + e] = static_cast<int32_t>(static_cast<int64_t>(m) * local + e);
    }
  }
  const int64_t chunks = std::clamp<int64_t>(slots / 4096, 1, chunks_of(args.pool.size()));
  const int64_t width = bins + 1;
  int32_t* next = carver.take<int32_t>(width * chunks);
  auto bin = [&](int64_t slot) {
    const int32_t e = idx[slot];
    return e < 0 || e >= limit ? static_cast<int32_t>(bins) : bin_of[e];
  };
  auto begin_of = [&](int64_t chunk) { return slots * chunk / chunks; };
  args.pool.run(chunks, [&](int64_t c, int) {
    int32_t* mine = next + c * width;
    std::fill(mine, mine + width, 0);
    for (int64_t i = begin_of(c); i < begin_of(c + 1); ++i) ++mine[bin(i)];
  });
  int32_t row = 0;
  for (int64_t b = 0; b < bins; ++b) {
    offsets[b] = row;
    for (int64_t c = 0; c < chunks; ++c) {
      const int32_t n = next[c * width + b];
      next[c * width + b] = row;
      row += n;
    }
    counts[b] = row - offsets[b];
  }
  offsets[bins] = row;
  args.pool.run(chunks, [&](int64_t c, int) {
    int32_t* mine = next + c * width;
    for (int64_t i = begin_of(c); i < begin_of(c + 1); ++i) {
      if (const int32_t b = bin(i); b < bins) source[mine[b]++] = static_cast<int32_t>(i);
    }
  });
}

// gather_rows ------------------------------------------------------------------------------------

bool accepts_gather(const Attrs&, Types in, Types out) { return in[0].dtype == out[0].dtype; }

void run_gather_rows(const LaunchArgs& args) {
  const int64_t experts = args.attrs.integer("experts"), top_k = args.attrs.integer("top_k");
  const int32_t* plan = args.in[1].as<const int32_t>();
  const int32_t* source = plan + experts + 1;
  const int64_t line = line_bytes(args.in[0]);
  MT_CHECK(plan[experts] == args.out[0].rows(), "a plan of ", plan[experts], " rows for ",
           args.out[0].rows());
  args.pool.run_ranges(plan[experts], rows_per_task(line), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(args.out[0].as<std::byte>() + r * line,
                  args.in[0].as<const std::byte>() + source[r] / top_k * line, line);
    }
  });
}

// regroup_rows -----------------------------------------------------------------------------------

size_t regroup_workspace(const Attrs&, Types in, Types, int) {
  return kCarverSlack + 2 * round_up_64((numel(in[1].shape) + 1) * sizeof(int64_t));
}

void run_regroup(const LaunchArgs& args) {
  const int64_t members = args.in[1].shape[0], experts = args.in[1].shape[1];
  const int32_t* counts = args.in[1].as<const int32_t>();
  const bool inverse = args.attrs.integer("inverse") != 0;
  const int64_t line = line_bytes(args.in[0]), blocks = members * experts;
  // Blocks in expert-major order: where each begins there, and among the source-major rows.
  Carver carver(args);
  int64_t* sorted = carver.take<int64_t>(blocks + 1);
  int64_t* source = carver.take<int64_t>(blocks);
  int64_t row = 0;
  for (int64_t m = 0; m < members; ++m) {
    for (int64_t e = 0; e < experts; ++e) {
      source[e * members + m] = row;
      row += counts[m * experts + e];
    }
  }
  row = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    sorted[b] = row;
    row += counts[b % members * experts + b / members];
  }
  sorted[blocks] = row;
  MT_CHECK(row == args.in[0].rows() && row == args.out[0].rows(), "regrouping ", args.in[0].rows(),
           " rows into ", args.out[0].rows(), " by counts of ", row);
  args.pool.run_ranges(row, rows_per_task(line), [&](int64_t begin, int64_t end, int) {
    int64_t block = std::upper_bound(sorted, sorted + blocks + 1, begin) - sorted - 1;
    while (begin < end) {
      const int64_t n = std::min(end, sorted[block + 1]) - begin;
      const int64_t there = source[block] + begin - sorted[block];
      const int64_t from = inverse ? begin : there, to = inverse ? there : begin;
      if (n > 0) {
        std::memcpy(args.out[0].as<std::byte>() + to * line,
                    args.in[0].as<const std::byte>() + from * line, n * line);
      }
      begin += n;
      ++block;
    }
  });
}

constexpr Kernel kRows[] = {
    {"dispatch_count", "dispatch_count.sort", &always, &count_workspace, &run_dispatch_count},
    {"gather_rows", "gather_rows.copy", &accepts_gather, nullptr, &run_gather_rows},
    {"regroup_rows", "regroup_rows.copy", &always, &regroup_workspace, &run_regroup},
};

}  // namespace

std::span<const Kernel> rows_kernels() { return kRows; }

}  // namespace moetrain::cpu
