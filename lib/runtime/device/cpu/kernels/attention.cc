// Forward attention: blocks of queries against runs of keys. Scores lie key-major, so that keys are
// read in place, softmax is vertical and pairs of keys meet as the second product needs them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/device/cpu/kernels/attention_grad.h"
#include "runtime/device/cpu/kernels/attention_parts.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Queries of a block.
constexpr int64_t kBlockQueries = 64;
/// Keys whose scores are held at once.
constexpr int64_t kKeyRun = 192;
/// Words from one key's scores to the next: an odd number of cache lines, so that those of one
/// query fall into different sets of the first-level cache.
constexpr int64_t kPitch = kBlockQueries + 16;
/// Queries of a task at least, when the heads alone do not keep the workers busy.
constexpr int64_t kChunkQueries = 2 * kBlockQueries;

bool accepts(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && in[1].dtype == in[0].dtype && in[2].dtype == in[0].dtype &&
         out[0].dtype == in[0].dtype;
}

/// Float buffers of one worker.
struct Buffers {
  float *keys, *values;           // of the whole head
  float *q, *scores, *pairs, *o;  // of one block
  static int64_t words(const AttentionSizes& d) {
    return d.z * d.width() + d.z_pad() * d.v_pad() + kBlockQueries * (d.width() + d.v_pad()) +
           (kKeyRun + kKeyRun / 2) * kPitch + 64;
  }
  Buffers(float* at, const AttentionSizes& d) {
    auto next = [&](int64_t count) {
      float* piece = at;
      at += (count + 15) / 16 * 16;
      return piece;
    };
    values = next(d.z_pad() * d.v_pad()), scores = next(kKeyRun * kPitch);
    pairs = next(kKeyRun / 2 * kPitch), o = next(kBlockQueries * d.v_pad());
    q = next(kBlockQueries * d.width()), keys = next(d.z * d.width());
  }
};

int64_t worker_words(const AttentionSizes& d) { return ceil_div(Buffers::words(d), 16) * 16; }

size_t workspace(const Attrs& attrs, Types in, Types, int threads) {
  const AttentionSizes d = attention_sizes(attrs, in[0].shape, in[1].shape, in[2].shape);
  return kCarverSlack + round_up_64(d.b * d.s * sizeof(KeyRange)) +
         threads * worker_words(d) * sizeof(float);
}

struct Forward {
  AttentionSizes d;
  float scale;
  DType dtype;
  const MicroSet* set;
  const AttentionRows* rows;
  const KeyRange* ranges;  ///< of this batch row
  const std::byte* q;      ///< first query of this (batch, head); rows h * width apart
  std::byte* o;            ///< rows h * v apart
  float* lse;              ///< rows h apart
  HeadOperands next;       ///< keys and values of the worker's next head, or of none
  const std::byte* next_q;
};

/// Scores of a run of keys from z0 on, where any query of a vector sees any of six keys.
void score_run(const Forward& f, const Buffers& w, const BlockRanges& ranges, int64_t z0,
               int64_t keys, RowsAhead& ahead) {
  const MicroSet& set = *f.set;
  const int64_t cols = set.tile_cols(), words = f.d.width() / set.pair;
  for (int64_t first = 0; first < ranges.vectors; first += set.vectors) {
    const float* q = w.q + first * set.lanes * words;
    for (int64_t i = 0; i < keys; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, keys - i);
      const KeyRange v = ranges.vectors_seeing(first, first + set.vectors, z0 + i, rows);
      if (v.begin >= v.end) continue;
      ahead.turn();
      set.kernel[rows - 1][v.end - v.begin - 1](
          words, w.keys + (z0 + i) * words, words, 1, q + (v.begin - first) * set.lanes, cols,
          w.scores + i * kPitch + v.begin * set.lanes, kPitch, false);
    }
  }
}

/// What will be read and written next, while block [s0, s0 + m) is under way.
RowsAhead rows_ahead(const Forward& f, const BlockRanges& ranges, int64_t s0, int64_t m) {
  const AttentionSizes& d = f.d;
  const int64_t size = size_of(f.dtype), width = d.h * d.width() * size, v = d.h * d.v * size;
  RowsAhead ahead;
  if (s0 + m < d.s) {
    ahead.add(f.q + (s0 + m) * width, width, std::min(kBlockQueries, d.s - s0 - m),
              d.width() * size);
  } else if (f.next.kv) {
    ahead.add(f.next_q, width, std::min(kBlockQueries, d.s), d.width() * size);
  }
  ahead.add(f.o + s0 * v, v, m, d.v * size);
  if (f.next.kv) f.next.announce(ahead, s0, m);
  const int64_t keys = ranges.all.end - ranges.all.begin;
  ahead.spread(ranges.vectors / f.set->vectors * ceil_div(keys, kTileRows) +
               ceil_div(keys, kKeyRun) * ceil_div(m, kTileRows));
  return ahead;
}

/// Queries [s0, s0 + m) of one head.
void forward_block(const Forward& f, const Buffers& w, int64_t s0, int64_t m) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const int64_t cols = panel_cols(set, d.v), pair = set.pair, size = size_of(f.dtype);
  const BlockRanges ranges(f.ranges + s0, m, set);
  pack_columns(set, f.dtype, f.q + s0 * d.h * d.width() * size, d.h * d.width(), m, d.width(), w.q);
  RowsAhead ahead = rows_ahead(f, ranges, s0, m);
  float maximum[kBlockQueries], sum[kBlockQueries] = {}, shrink[kBlockQueries];
  std::fill(maximum, maximum + kBlockQueries, -std::numeric_limits<float>::infinity());
  KeyRange tiles[ceil_div(kBlockQueries, kTileRows)];
  bool started[ceil_div(kBlockQueries, kTileRows)] = {};
  for (int64_t i = 0; i < m; i += kTileRows)
    tiles[i / kTileRows] = ranges.seen_by(i, std::min<int64_t>(kTileRows, m - i));
  for (int64_t z0 = ranges.all.begin / 2 * 2; z0 < ranges.all.end; z0 += kKeyRun) {
    const int64_t keys = std::min<int64_t>(kKeyRun, ranges.all.end - z0);
    score_run(f, w, ranges, z0, keys, ahead);
    f.rows->softmax({w.scores, kPitch, z0, keys, ranges.vectors, ranges.view(0), f.scale, maximum,
                     sum, shrink, pair == 2 ? reinterpret_cast<uint32_t*>(w.pairs) : nullptr,
                     kPitch});
    const float* p = pair == 2 ? w.pairs : w.scores;
    for (int64_t i = 0; i < m; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, m - i);
      bool& on = started[i / kTileRows];
      const KeyRange& tile = tiles[i / kTileRows];
      const int64_t begin = std::clamp<int64_t>(tile.begin - z0, 0, keys) / pair;
      const int64_t end = ceil_div(std::clamp<int64_t>(tile.end - z0, 0, keys), pair);
      if (begin >= end) continue;
      ahead.turn();
      for (int64_t r = i; on && r < i + rows; ++r) {
        if (shrink[r] != 1.0f) f.rows->scale(w.o + r * d.v_pitch(), d.v, shrink[r]);
      }
      const float* values = w.values + (z0 / pair + begin) * cols;
      for (int64_t j = 0; j < d.v; j += cols, values += ceil_div(d.z, pair) * cols) {
        const int64_t vectors = ceil_div(std::min(cols, d.v - j), set.lanes);
        set.kernel[rows - 1][vectors - 1](end - begin, p + begin * kPitch + i, 1, kPitch, values,
                                          cols, w.o + i * d.v_pitch() + j, d.v_pitch(), on);
      }
      on = true;
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    float* o = w.o + i * d.v_pitch();
    if (sum[i] == 0) std::fill(o, o + d.v, 0.0f);
    f.rows->finish(o, d.v, sum[i] > 0 ? 1.0f / sum[i] : 0.0f, f.o + (s0 + i) * d.h * d.v * size,
                   f.dtype);
    f.lse[(s0 + i) * d.h] = f.scale * maximum[i] + std::log(sum[i]);
  }
}

void run_attention(const LaunchArgs& args) {
  const AttentionSizes d =
      attention_sizes(args.attrs, args.in[0].shape, args.in[1].shape, args.in[2].shape);
  if (d.b * d.s * d.h == 0) return;
  const DType dtype = args.in[0].dtype;
  const MicroSet& set = attention_set(dtype, d);
  Carver carver(args);
  KeyRange* ranges = carver.take<KeyRange>(d.b * d.s);
  float* buffers = carver.take<float>(args.pool.size() * worker_words(d));
  find_key_ranges(d, args.in[3].as<const int32_t>(), args.in[4].as<const int32_t>(),
                  args.in[5].as<const int32_t>(), ranges);
  // Heads are tasks; when there are few of them, pieces of their queries are.
  const int64_t heads = d.b * d.h;
  const int64_t most = std::max<int64_t>(1, d.s / kChunkQueries);
  const int64_t pieces = args.pool.size() == 1
                             ? 1
                             : std::clamp<int64_t>(ceil_div(4 * args.pool.size(), heads), 1, most);
  const int64_t step = ceil_div(ceil_div(d.s, pieces), kBlockQueries) * kBlockQueries;
  auto q_of = [&](int64_t head) {
    const int64_t row = head / d.h * d.s * d.h + head % d.h;
    return args.in[0].as<const std::byte>() +
           row * d.width() * static_cast<int64_t>(size_of(dtype));
  };
  auto run = [&](int64_t task, int worker) {
    const int64_t head = task % heads, piece = pieces - 1 - task / heads;
    const int64_t batch = head / d.h, h = head % d.h;
    const Buffers w(buffers + worker * worker_words(d), d);
    const HeadOperands operands = head_operands(d, args.in[1], args.in[2], set, batch, h);
    operands.join_keys(w.keys);
    operands.pack_values(w.values);
    const int64_t row = batch * d.s * d.h + h;
    const bool another = pieces == 1 && head + 1 < heads;
    const Forward f{
        d,
        static_cast<float>(args.attrs.real("scale")),
        dtype,
        &set,
        &attention_rows(),
        ranges + batch * d.s,
        q_of(head),
        args.out[0].as<std::byte>() + row * d.v * static_cast<int64_t>(size_of(dtype)),
        args.out[1].as<float>() + row,
        another ? head_operands(d, args.in[1], args.in[2], set, (head + 1) / d.h, (head + 1) % d.h)
                : HeadOperands{},
        another ? q_of(head + 1) : nullptr};
    for (int64_t s = piece * step; s < std::min(d.s, (piece + 1) * step); s += kBlockQueries)
      forward_block(f, w, s, std::min(kBlockQueries, d.s - s));
  };
  if (pieces == 1)
    args.pool.run(heads, run);
  else
    args.pool.run_in_order(heads * pieces, run);
}

constexpr Kernel kRows[] = {
    {"attention", "attention.tiled", &accepts, &workspace, &run_attention},
    {"attention_grad", "attention_grad.tiled", &accepts_attention_grad, &attention_grad_workspace,
     &run_attention_grad},
};

}  // namespace

std::span<const Kernel> attention_kernels() { return kRows; }

}  // namespace moetrain::cpu
