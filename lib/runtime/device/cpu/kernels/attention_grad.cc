// Backward attention: blocks of queries against steps of keys; scores are computed again, never
// stored. They lie key-major, so that keys and values are read in place and what comes of them is
// already in the order in which the gradients of keys and values read it.
#include "runtime/device/cpu/kernels/attention_grad.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/attention_parts.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Queries of one block.
constexpr int64_t kBlockQueries = kMostQueries;
/// Keys whose scores are held at once.
constexpr int64_t kKeyStep = 16 * kTileRows;
constexpr int64_t kKeyTiles = kKeyStep / kTileRows;
/// Words from one key to the next (of floats, of pairs of keys): an odd number of cache lines, so
/// that what belongs to one query falls into different sets of the first-level cache.
constexpr int64_t kPitch = kBlockQueries + 16;

/// Float buffers of one worker.
struct Buffers {
  float *keys, *key_rows, *value_rows, *dk, *dv;         // of the whole head
  float *q_columns, *do_columns, *queries, *douts, *dq;  // of one block
  float *p, *ds, *pairs;                                 // of one step
  static int64_t words(const AttentionSizes& d) {
    return d.z_pad() * (d.width() + d.v + 2 * d.width_pad() + d.v_pad()) +
           kBlockQueries * (d.width() + d.v + 2 * d.width_pad() + d.v_pad()) +
           kKeyStep * (2 * kPitch + kPitch / 2) + 13 * 16;
  }
  Buffers(float* at, const AttentionSizes& d) {
    auto next = [&](int64_t count) {
      float* piece = at;
      at += (count + 15) / 16 * 16;
      return piece;
    };
    keys = next(d.z_pad() * d.width_pad());
    key_rows = next(d.z_pad() * d.width()), value_rows = next(d.z_pad() * d.v);
    dk = next(d.z_pad() * d.width_pad()), dv = next(d.z_pad() * d.v_pad());
    q_columns = next(kBlockQueries * d.width()), do_columns = next(kBlockQueries * d.v);
    queries = next(kBlockQueries * d.width_pad()), douts = next(kBlockQueries * d.v_pad());
    dq = next(kBlockQueries * d.width_pad());
    p = next(kKeyStep * kPitch), ds = next(kKeyStep * kPitch), pairs = next(kKeyStep / 2 * kPitch);
  }
};

int64_t worker_words(const AttentionSizes& d) { return ceil_div(Buffers::words(d), 16) * 16; }

AttentionSizes sizes_of(const Attrs& attrs, const Shape& q, const Shape& kv, const Shape& kr) {
  return attention_sizes(attrs, q, kv, kr);
}

const std::byte* element(const void* base, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(size_of(dtype));
}

/// One (batch, head).
struct Backward {
  AttentionSizes d;
  float scale;
  DType dtype;
  const MicroSet* set;
  const AttentionRows* rows;
  const KeyRange* ranges;         ///< of this batch row
  const std::byte *q, *dout, *o;  ///< first query of this head
  const float* lse;
  std::byte *dq, *dkv;  ///< first row of this head
  float* dkr;           ///< [z, r], this head's addend
  HeadOperands head;
};

/// One block of queries, and where its products are.
struct Block {
  int64_t first, queries;
  BlockRanges ranges;
  KeyRange tiles[kBlockQueries / kTileRows];  ///< what six queries see
  float lse[kBlockQueries], delta[kBlockQueries];

  Block(const Backward& f, int64_t s0, int64_t m)
      : first(s0), queries(m), ranges(f.ranges + s0, m, *f.set) {
    const AttentionSizes& d = f.d;
    for (int64_t i = 0; i < m; i += kTileRows)
      tiles[i / kTileRows] = ranges.seen_by(i, std::min<int64_t>(kTileRows, m - i));
    std::fill(lse, lse + kBlockQueries, 0.0f);
    std::fill(delta, delta + kBlockQueries, 0.0f);
    for (int64_t i = 0; i < m; ++i) lse[i] = f.lse[(s0 + i) * d.h];
    const int64_t at = s0 * d.h * d.v;
    f.rows->dots(element(f.dout, f.dtype, at), element(f.o, f.dtype, at), d.h * d.v, m, d.v,
                 f.dtype, delta);
  }
};

/// What will be read and written next, while a block of `f` is under way; `next` is the worker's
/// next head, or null.
RowsAhead rows_ahead(const Backward& f, const Backward* next, const Block& block) {
  const AttentionSizes& d = f.d;
  const int64_t size = size_of(f.dtype), width = d.width() * size, v = d.v * size;
  const int64_t s0 = block.first, m = block.queries;
  const bool last = s0 + m >= d.s;
  RowsAhead ahead;
  ahead.add(f.dq + s0 * d.h * width, d.h * width, m, width);
  if (const Backward* then = last ? next : &f) {
    const int64_t s = last ? 0 : s0 + m, rows = std::min(kBlockQueries, d.s - s);
    ahead.add(then->q + s * d.h * width, d.h * width, rows, width);
    ahead.add(then->dout + s * d.h * v, d.h * v, rows, v);
    ahead.add(then->o + s * d.h * v, d.h * v, rows, v);
  }
  if (next) next->head.announce(ahead, s0, m);
  const int64_t kv = (d.n + d.v) * size;
  if (last) ahead.add(f.dkv, d.h * kv, d.z, kv);
  const int64_t keys = block.ranges.all.end - block.ranges.all.begin;
  ahead.spread(block.ranges.vectors / f.set->vectors * ceil_div(keys, kTileRows));
  return ahead;
}

/// Elements between the rows of p and ds.
int64_t row_elements(const MicroSet& set) { return set.pair == 1 ? kPitch : kPitch + 16; }

/// Zeros in vectors [from, to) of `rows` keys from the ith of the step on.
void clear_vectors(const MicroSet& set, const Buffers& w, int64_t i, int64_t rows, int64_t from,
                   int64_t to) {
  if (from >= to) return;
  const int64_t pitch = row_elements(set) / set.pair, words = (to - from) * set.lanes;
  for (int64_t r = i; r < i + rows; ++r) {
    const int64_t at = r * pitch + from * set.lanes / set.pair;
    std::memset(w.p + at, 0, words / set.pair * sizeof(float));
    std::memset(w.ds + at, 0, words / set.pair * sizeof(float));
    if (set.pair == 2) std::memset(w.pairs + r / 2 * kPitch + from * set.lanes, 0, words * 4);
  }
}

/// Probabilities and score gradients of the block's queries against `keys` keys from z0 on. Leaves
/// in `seen` the queries that see any of six keys.
void score_step(const Backward& f, const Buffers& w, const RowsOperand& values, const Block& block,
                int64_t z0, int64_t keys, KeyRange* seen, RowsAhead& ahead) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const BlockRanges& ranges = block.ranges;
  const int64_t cols = set.tile_cols(), words = d.width() / set.pair, v_words = d.v / set.pair;
  const int64_t pitch = row_elements(set);
  float scores[kTileRows * kMaxTileCols], gradients[kTileRows * kMaxTileCols];
  std::fill(seen, seen + kKeyTiles, KeyRange{0, 0});
  for (int64_t first = 0; first < ranges.vectors; first += set.vectors) {
    for (int64_t i = 0; i < keys; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, keys - i), last = first + set.vectors;
      const KeyRange v = ranges.vectors_seeing(first, last, z0 + i, rows);
      clear_vectors(set, w, i, rows, first, v.begin >= v.end ? last : v.begin);
      if (v.begin >= v.end) continue;
      clear_vectors(set, w, i, rows, v.end, last);
      ahead.turn();
      const int64_t n = v.end - v.begin, c = v.begin * set.lanes;
      int64_t query = c;
      while (ranges.begin[query] >= z0 + i + rows || ranges.end[query] <= z0 + i) ++query;
      KeyRange& s = seen[i / kTileRows];
      if (s.begin == s.end) s.begin = static_cast<int32_t>(query);
      s.end = static_cast<int32_t>(std::min<int64_t>(v.end * set.lanes, block.queries));
      // For the dot set the floats go aside; else they become results where they are.
      const bool aside = set.pair == 2;
      float* p = aside ? scores : w.p + i * pitch + c;
      float* dp = aside ? gradients : w.ds + i * pitch + c;
      const int64_t ld = aside ? cols : pitch, skip = first * set.lanes, at = c - skip;
      const MicroKernel kernel = set.kernel[rows - 1][n - 1];
      kernel(words, w.key_rows + (z0 + i) * words, words, 1, w.q_columns + skip * words + at, cols,
             p, ld, false);
      kernel(v_words, values.data + (z0 + i) * values.rs, values.rs, 1,
             w.do_columns + skip * v_words + at, cols, dp, ld, false);
      GradientTile tile{p,
                        dp,
                        ld,
                        z0 + i,
                        rows,
                        n,
                        ranges.view(v.begin),
                        f.scale,
                        block.lse + c,
                        block.delta + c,
                        p,
                        dp,
                        pitch,
                        nullptr,
                        kPitch};
      if (aside) {
        tile.p = reinterpret_cast<uint16_t*>(w.p) + i * pitch + c;
        tile.ds = reinterpret_cast<uint16_t*>(w.ds) + i * pitch + c;
        tile.pairs = reinterpret_cast<uint32_t*>(w.pairs) + i / 2 * kPitch + c;
      }
      f.rows->gradient(tile);
    }
  }
}

/// rows[keys, n] += g[keys, queries] B, B the block's queries or output gradients as panels. Rows
/// from the `fresh`th on hold nothing yet.
void add_to_keys(const MicroSet& set, const Block& block, const KeyRange* seen, int64_t keys,
                 int64_t fresh, const float* g, const float* b, int64_t n, float* rows,
                 int64_t ld) {
  const int64_t cols = panel_cols(set, n), pitch = row_elements(set) / set.pair;
  for (int64_t j = 0; j < n; j += cols, b += ceil_div(block.queries, set.pair) * cols) {
    const int64_t vectors = ceil_div(std::min(cols, n - j), set.lanes);
    for (int64_t i = 0; i < keys; i += kTileRows) {
      const KeyRange& s = seen[i / kTileRows];
      const int64_t first = s.begin / set.pair, words = ceil_div(s.end, set.pair) - first;
      if (words <= 0 && i < fresh) continue;
      // Without queries a product of no steps, zero, where nothing is yet.
      set.kernel[std::min<int64_t>(kTileRows, keys - i) - 1][vectors - 1](
          words, g + i * pitch + first, pitch, 1, b + first * cols, cols, rows + i * ld + j, ld,
          i < fresh);
    }
  }
}

/// dq += dS^T K for `keys` keys from z0 on; tiles of queries that are not `started` hold nothing.
void add_to_queries(const Backward& f, const Buffers& w, const Block& block, int64_t z0,
                    int64_t keys, bool* started) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const int64_t cols = panel_cols(set, d.width()), pair = set.pair, ld = d.width_pitch();
  const float* ds = pair == 2 ? w.pairs : w.ds;
  for (int64_t i = 0; i < block.queries; i += kTileRows) {
    const KeyRange& tile = block.tiles[i / kTileRows];
    const int64_t begin = std::clamp<int64_t>(tile.begin - z0, 0, keys) / pair;
    const int64_t end = ceil_div(std::clamp<int64_t>(tile.end - z0, 0, keys), pair);
    if (begin >= end) continue;
    const float* b = w.keys + (z0 / pair + begin) * cols;
    for (int64_t j = 0; j < d.width(); j += cols, b += ceil_div(d.z, pair) * cols) {
      const int64_t vectors = ceil_div(std::min(cols, d.width() - j), set.lanes);
      set.kernel[std::min<int64_t>(kTileRows, block.queries - i) - 1][vectors - 1](
          end - begin, ds + begin * kPitch + i, 1, kPitch, b, cols, w.dq + i * ld + j, ld,
          started[i / kTileRows]);
    }
    started[i / kTileRows] = true;
  }
}

/// Zero gradients of keys from *filled to `end`, which no query has seen yet.
void fill_to(const AttentionSizes& d, const Buffers& w, int64_t end, int64_t* filled) {
  if (*filled >= end) return;
  const int64_t keys = end - *filled;
  std::memset(w.dk + *filled * d.width_pitch(), 0, keys * d.width_pitch() * sizeof(float));
  std::memset(w.dv + *filled * d.v_pitch(), 0, keys * d.v_pitch() * sizeof(float));
  *filled = end;
}

/// All contributions of queries [s0, s0 + m). The first *filled keys have gradients from queries
/// before; updated.
void backward_block(const Backward& f, const Backward* next, const Buffers& w,
                    const RowsOperand& values, int64_t s0, int64_t m, int64_t* filled) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const std::byte* q_rows = element(f.q, f.dtype, s0 * d.h * d.width());
  const std::byte* do_rows = element(f.dout, f.dtype, s0 * d.h * d.v);
  pack_columns(set, f.dtype, q_rows, d.h * d.width(), m, d.width(), w.q_columns);
  pack_columns(set, f.dtype, do_rows, d.h * d.v, m, d.v, w.do_columns);
  pack_row_panels(set, f.dtype, q_rows, d.h * d.width(), m, d.width(), w.queries);
  pack_row_panels(set, f.dtype, do_rows, d.h * d.v, m, d.v, w.douts);
  const Block block(f, s0, m);
  RowsAhead ahead = rows_ahead(f, next, block);
  KeyRange seen[kKeyTiles];
  bool started[kBlockQueries / kTileRows] = {};
  // Whole tiles of keys, the same ones for every block.
  const int64_t first = block.ranges.all.begin / kTileRows * kTileRows;
  const int64_t last = std::min(d.z, ceil_div(block.ranges.all.end, kTileRows) * kTileRows);
  fill_to(d, w, first, filled);
  for (int64_t z0 = first; z0 < last; z0 += kKeyStep) {
    const int64_t keys = std::min(kKeyStep, last - z0), fresh = *filled - z0;
    score_step(f, w, values, block, z0, keys, seen, ahead);
    add_to_keys(set, block, seen, keys, fresh, w.p, w.douts, d.v, w.dv + z0 * d.v_pitch(),
                d.v_pitch());
    add_to_keys(set, block, seen, keys, fresh, w.ds, w.queries, d.width(),
                w.dk + z0 * d.width_pitch(), d.width_pitch());
    add_to_queries(f, w, block, z0, keys, started);
  }
  *filled = std::max(*filled, last);
  for (int64_t i = 0; i < m; i += kTileRows) {
    if (started[i / kTileRows]) continue;
    const int64_t rows = std::min<int64_t>(kTileRows, m - i);
    std::memset(w.dq + i * d.width_pitch(), 0, rows * d.width_pitch() * sizeof(float));
  }
  f.rows->finish_rows(w.dq, d.width_pitch(), m, d.width(), f.scale,
                      const_cast<std::byte*>(element(f.dq, f.dtype, s0 * d.h * d.width())),
                      d.h * d.width(), f.dtype);
}

void backward_head(const Backward& f, const Backward* next, const Buffers& w) {
  const AttentionSizes& d = f.d;
  f.head.join_keys(w.key_rows);
  const RowsOperand values = f.head.value_rows(w.value_rows);
  f.head.pack_keys(w.keys);
  int64_t filled = 0;
  for (int64_t s = 0; s < d.s; s += kBlockQueries) {
    backward_block(f, next, w, values, s, std::min(kBlockQueries, d.s - s), &filled);
  }
  fill_to(d, w, d.z, &filled);
  const int64_t pitch = d.h * (d.n + d.v);
  f.rows->finish_rows(w.dk, d.width_pitch(), d.z, d.n, f.scale, f.dkv, pitch, f.dtype);
  f.rows->finish_rows(w.dv, d.v_pitch(), d.z, d.v, 1.0f,
                      f.dkv + d.n * static_cast<int64_t>(size_of(f.dtype)), pitch, f.dtype);
  f.rows->finish_rows(w.dk + d.n, d.width_pitch(), d.z, d.r, f.scale, f.dkr, d.r, DType::kF32);
}

/// dkr[b, z] = sum of the heads' addends, in head order, added up in the first one.
void sum_heads(const AttentionSizes& d, float* parts, const Tensor& dkr, ThreadPool& pool) {
  const AttentionRows& rows = attention_rows();
  pool.run_ranges(d.z, 64, [&](int64_t begin, int64_t end, int) {
    const int64_t n = (end - begin) * d.r;
    for (int64_t b = 0; b < d.b; ++b) {
      float* sum = parts + (b * d.h * d.z + begin) * d.r;
      for (int64_t h = 1; h < d.h; ++h) rows.add(sum, sum + h * d.z * d.r, n);
      rows.finish(sum, n, 1.0f,
                  const_cast<std::byte*>(element(dkr.data, dkr.dtype, (b * d.z + begin) * d.r)),
                  dkr.dtype);
    }
  });
}

}  // namespace

bool accepts_attention_grad(const Attrs&, Types in, Types out) {
  for (int i : {1, 2, 3, 4}) {
    if (in[i].dtype != in[0].dtype) return false;
  }
  return is_f32_or_bf16(in[0]) && in[5].dtype == DType::kF32 && out[0].dtype == in[0].dtype;
}

size_t attention_grad_workspace(const Attrs& attrs, Types in, Types, int threads) {
  const AttentionSizes d = sizes_of(attrs, in[1].shape, in[2].shape, in[3].shape);
  return kCarverSlack + round_up_64(d.b * d.s * sizeof(KeyRange)) +
         round_up_64(d.b * d.h * d.z * d.r * sizeof(float)) +
         threads * worker_words(d) * sizeof(float);
}

void run_attention_grad(const LaunchArgs& args) {
  const AttentionSizes d =
      sizes_of(args.attrs, args.in[1].shape, args.in[2].shape, args.in[3].shape);
  const DType dtype = args.in[0].dtype;
  const MicroSet& set = attention_set(dtype, d);
  Carver carver(args);
  KeyRange* ranges = carver.take<KeyRange>(d.b * d.s);
  float* dkr = carver.take<float>(d.b * d.h * d.z * d.r);
  float* buffers = carver.take<float>(args.pool.size() * worker_words(d));
  find_key_ranges(d, args.in[6].as<const int32_t>(), args.in[7].as<const int32_t>(),
                  args.in[8].as<const int32_t>(), ranges);
  auto of_head = [&](int64_t head) {
    const int64_t batch = head / d.h, h = head % d.h;
    const int64_t row = batch * d.s * d.h + h, key_row = batch * d.z * d.h + h;
    auto at = [&](const Tensor& t, int64_t index) {
      return const_cast<std::byte*>(element(t.data, dtype, index));
    };
    return Backward{d,
                    static_cast<float>(args.attrs.real("scale")),
                    dtype,
                    &set,
                    &attention_rows(),
                    ranges + batch * d.s,
                    at(args.in[1], row * d.width()),
                    at(args.in[0], row * d.v),
                    at(args.in[4], row * d.v),
                    args.in[5].as<const float>() + row,
                    at(args.out[0], row * d.width()),
                    at(args.out[1], key_row * (d.n + d.v)),
                    dkr + head * d.z * d.r,
                    head_operands(d, args.in[2], args.in[3], set, batch, h)};
  };
  args.pool.run(d.b * d.h, [&](int64_t head, int worker) {
    const bool another = head + 1 < d.b * d.h;
    const Backward next = of_head(another ? head + 1 : head);
    backward_head(of_head(head), another ? &next : nullptr,
                  Buffers(buffers + worker * worker_words(d), d));
  });
  sum_heads(d, dkr, args.out[2], args.pool);
}

}  // namespace moetrain::cpu
