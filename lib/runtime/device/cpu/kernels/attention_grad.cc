// Backward attention: blocks of queries against panels of keys; scores are computed again, never
// stored.
#include "runtime/device/cpu/kernels/attention_grad.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/attention_parts.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Queries of one block: the contraction length of dK and dV.
constexpr int64_t kBlockQueries = 32 * kTileRows;
constexpr int64_t kTileWords = kBlockQueries * kMaxTileCols;

/// Float buffers of one worker.
struct Buffers {
  float *keys_t, *values_t, *keys, *dk, *dv;  // of the whole head
  float *queries, *douts, *dq, *p, *ds, *p_pairs, *ds_pairs, *rows_q, *rows_do;  // of one block
  static int64_t words(const AttentionSizes& d) {
    return d.z_pad() * (d.width() + d.v + d.width_pad() + d.width_pad() + d.v_pad()) +
           kBlockQueries * (d.width_pad() + d.v_pad() + d.width_pad()) + 4 * kTileWords +
           kBlockQueries * (d.width() + d.v) + 64;
  }
  Buffers(float* at, const AttentionSizes& d) {
    auto next = [&](int64_t count) {
      float* piece = at;
      at += count;
      return piece;
    };
    keys_t = next(d.z_pad() * d.width()), values_t = next(d.z_pad() * d.v);
    keys = next(d.z_pad() * d.width_pad());
    dk = next(d.z_pad() * d.width_pad()), dv = next(d.z_pad() * d.v_pad());
    queries = next(kBlockQueries * d.width_pad()), douts = next(kBlockQueries * d.v_pad());
    dq = next(kBlockQueries * d.width_pad());
    p = next(kTileWords), ds = next(kTileWords);
    p_pairs = next(kTileWords), ds_pairs = next(kTileWords);
    rows_q = next(kBlockQueries * d.width()), rows_do = next(kBlockQueries * d.v);
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

/// Packs rows of `width` elements as B: panels of tile_cols() columns, each [row
/// words][tile_cols()].
void pack_row_panels(const MicroSet& set, DType dtype, const std::byte* src, int64_t pitch,
                     int64_t rows, int64_t width, float* out) {
  const int64_t cols = set.tile_cols(), words = ceil_div(rows, set.pair);
  for (int64_t c = 0; c < width; c += cols, out += words * cols) {
    set.pack.rows(element(src, dtype, c), pitch, rows, std::min(cols, width - c), cols, out, cols);
  }
}

uint16_t* bf16_row(float* tile, int64_t row, int64_t cols) {
  return reinterpret_cast<uint16_t*>(tile) + row * cols;
}

/// Probabilities and score gradients of block rows [s0, s0 + m) against the panel of keys at z0.
/// Returns the rows that see any of them, as [first, last) offsets from s0. For the dot set the
/// results are rows of bf16 from the start of the buffers, which trail behind the rows of floats
/// still to be read.
KeyRange score_tiles(const Backward& f, const Buffers& w, const RowsOperand& q,
                     const RowsOperand& dout, const float* delta, int64_t s0, int64_t m,
                     int64_t z0) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const int64_t cols = set.tile_cols(), words = d.width() / set.pair, v_words = d.v / set.pair;
  const int64_t keys = std::min(cols, d.z - z0);
  KeyRange seen{0, 0};
  for (int64_t i = 0; i < m; i += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, m - i);
    const KeyRange all = union_of(f.ranges + s0 + i, rows);
    const bool none = all.begin >= all.end || all.end <= z0 || all.begin >= z0 + keys;
    float *p = w.p + i * cols, *ds = w.ds + i * cols;
    if (none) {
      const size_t row_bytes = cols * sizeof(float) / set.pair;
      std::memset(reinterpret_cast<std::byte*>(w.p) + i * row_bytes, 0, rows * row_bytes);
      std::memset(reinterpret_cast<std::byte*>(w.ds) + i * row_bytes, 0, rows * row_bytes);
      continue;
    }
    if (seen.begin == seen.end) seen.begin = static_cast<int32_t>(i);
    seen.end = static_cast<int32_t>(i + rows);
    const int64_t vectors = ceil_div(std::min<int64_t>(keys, all.end - z0), set.lanes);
    const MicroKernel kernel = set.kernel[rows - 1][vectors - 1];
    kernel(words, static_cast<const float*>(q.data) + i * q.rs, q.rs, 1, w.keys_t + z0 * words,
           cols, p, cols, false);
    kernel(v_words, static_cast<const float*>(dout.data) + i * dout.rs, dout.rs, 1,
           w.values_t + z0 * v_words, cols, ds, cols, false);
    for (int64_t r = 0; r < rows; ++r) {
      const KeyRange visible = f.ranges[s0 + i + r];
      const int64_t begin = std::clamp<int64_t>(visible.begin - z0, 0, keys);
      const int64_t end = std::clamp<int64_t>(visible.end - z0, begin, keys);
      const bool dot = set.pair == 2;
      f.rows->gradient(p + r * cols, ds + r * cols, begin, end, cols, f.scale,
                       f.lse[(s0 + i + r) * d.h], delta[i + r],
                       dot ? bf16_row(w.p, i + r, cols) : nullptr,
                       dot ? bf16_row(w.ds, i + r, cols) : nullptr);
      // The only key of a query has probability one whatever its score: no rounding noise for it.
      if (visible.end - visible.begin == 1 && begin < end) {
        if (dot)
          bf16_row(w.ds, i + r, cols)[begin] = 0;
        else
          ds[r * cols + begin] = 0;
      }
    }
  }
  return seen;
}

/// All contributions of queries [s0, s0 + m).
void backward_block(const Backward& f, const Buffers& w, int64_t s0, int64_t m) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const int64_t cols = set.tile_cols(), pair = set.pair;
  const std::byte* q_rows = element(f.q, f.dtype, s0 * d.h * d.width());
  const std::byte* do_rows = element(f.dout, f.dtype, s0 * d.h * d.v);
  const RowsOperand q = rows_operand(set, f.dtype, q_rows, d.h * d.width(), m, d.width(), w.rows_q);
  const RowsOperand dout = rows_operand(set, f.dtype, do_rows, d.h * d.v, m, d.v, w.rows_do);
  pack_row_panels(set, f.dtype, q_rows, d.h * d.width(), m, d.width(), w.queries);
  pack_row_panels(set, f.dtype, do_rows, d.h * d.v, m, d.v, w.douts);
  float delta[kBlockQueries];
  for (int64_t i = 0; i < m; ++i) {
    const int64_t at = (s0 + i) * d.h * d.v;
    delta[i] = f.rows->dot(element(f.dout, f.dtype, at), element(f.o, f.dtype, at), d.v, f.dtype);
  }
  std::memset(w.dq, 0, m * d.width_pad() * sizeof(float));
  const KeyRange all = union_of(f.ranges + s0, m);
  KeyRange tiles[kBlockQueries / kTileRows];
  for (int64_t i = 0; i < m; i += kTileRows) {
    tiles[i / kTileRows] = union_of(f.ranges + s0 + i, std::min<int64_t>(kTileRows, m - i));
  }
  const int64_t row_words = ceil_div(m, pair), key_words = ceil_div(d.z, pair);
  for (int64_t z0 = all.begin / cols * cols; z0 < all.end; z0 += cols) {
    const int64_t keys = std::min<int64_t>(cols, all.end - z0);
    const KeyRange seen = score_tiles(f, w, q, dout, delta, s0, m, z0);
    if (seen.begin == seen.end) continue;
    float *p_cols = w.p, *ds_cols = w.ds;
    if (pair == 2) {
      set.pack.rows(w.p, cols, seen.end, cols, cols, w.p_pairs, cols);
      set.pack.rows(w.ds, cols, seen.end, cols, cols, w.ds_pairs, cols);
      p_cols = w.p_pairs, ds_cols = w.ds_pairs;
    }
    // Six keys at a time, from the first rows that see any of them.
    int64_t tile = seen.begin / kTileRows;
    for (int64_t i = 0; i < keys; i += kTileRows) {
      while ((tile + 1) * kTileRows < seen.end && tiles[tile].end <= z0 + i) ++tile;
      const int64_t first = tile * kTileRows / pair, words = ceil_div(seen.end, pair) - first;
      const int64_t n = std::min<int64_t>(kTileRows, keys - i);
      multiply_panels(set, n, words, p_cols + first * cols + i, 1, cols, w.douts + first * cols,
                      row_words * cols, d.v, w.dv + (z0 + i) * d.v_pad(), d.v_pad(), true);
      multiply_panels(set, n, words, ds_cols + first * cols + i, 1, cols, w.queries + first * cols,
                      row_words * cols, d.width(), w.dk + (z0 + i) * d.width_pad(), d.width_pad(),
                      true);
    }
    // dQ += dS K, up to the last key a tile of rows sees; pairs beyond z were packed as zeros.
    for (int64_t i = seen.begin; i < seen.end; i += kTileRows) {
      const int64_t visible = std::clamp<int64_t>(tiles[i / kTileRows].end - z0, 0, keys);
      multiply_panels(set, std::min<int64_t>(kTileRows, seen.end - i), ceil_div(visible, pair),
                      w.ds + i * cols / pair, cols / pair, 1, w.keys + z0 / pair * cols,
                      key_words * cols, d.width(), w.dq + i * d.width_pad(), d.width_pad(), true);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    const int64_t at = (s0 + i) * d.h * d.width();
    f.rows->finish(w.dq + i * d.width_pad(), d.width(), 1.0f,
                   const_cast<std::byte*>(element(f.dq, f.dtype, at)), f.dtype);
  }
}

void backward_head(const Backward& f, const Buffers& w) {
  const AttentionSizes& d = f.d;
  f.head.pack_keys_transposed(w.keys_t);
  f.head.pack_values_transposed(w.values_t);
  f.head.pack_keys(w.keys);
  std::memset(w.dk, 0, d.z * d.width_pad() * sizeof(float));
  std::memset(w.dv, 0, d.z * d.v_pad() * sizeof(float));
  for (int64_t s = 0; s < d.s; s += kBlockQueries) {
    backward_block(f, w, s, std::min(kBlockQueries, d.s - s));
  }
  for (int64_t z = 0; z < d.z; ++z) {
    std::byte* row = f.dkv + z * d.h * (d.n + d.v) * static_cast<int64_t>(size_of(f.dtype));
    f.rows->finish(w.dk + z * d.width_pad(), d.n, 1.0f, row, f.dtype);
    f.rows->finish(w.dv + z * d.v_pad(), d.v, 1.0f,
                   row + d.n * static_cast<int64_t>(size_of(f.dtype)), f.dtype);
    std::memcpy(f.dkr + z * d.r, w.dk + z * d.width_pad() + d.n, d.r * sizeof(float));
  }
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
  args.pool.run(d.b * d.h, [&](int64_t head, int worker) {
    const int64_t batch = head / d.h, h = head % d.h;
    const int64_t row = batch * d.s * d.h + h, key_row = batch * d.z * d.h + h;
    auto at = [&](const Tensor& t, int64_t index) {
      return const_cast<std::byte*>(element(t.data, dtype, index));
    };
    const Backward f{d,
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
    backward_head(f, Buffers(buffers + worker * worker_words(d), d));
  });
  sum_heads(d, dkr, args.out[2], args.pool);
}

}  // namespace moetrain::cpu
