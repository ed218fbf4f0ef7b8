// Forward attention: six queries at a time, scores of a run of keys in cache, online softmax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/device/cpu/kernels/attention_grad.h"
#include "runtime/device/cpu/kernels/attention_parts.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Keys whose scores are held at once: 6 x 512 floats, 12 KB.
constexpr int64_t kKeyRun = 512;
/// Queries of a task at least, when the heads alone do not keep the workers busy.
constexpr int64_t kChunkQueries = 16 * kTileRows;

bool accepts(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && in[1].dtype == in[0].dtype && in[2].dtype == in[0].dtype &&
         out[0].dtype == in[0].dtype;
}

/// Float buffers of one worker.
struct Buffers {
  float *keys, *values, *scores, *rounded, *o, *q;
  static int64_t words(const AttentionSizes& d) {
    return d.z_pad() * d.width() + d.z_pad() * d.v_pad() + kTileRows * (kKeyRun + kKeyRun / 2) +
           kTileRows * (d.v_pad() + d.width()) + 64;
  }
  Buffers(float* at, const AttentionSizes& d) {
    auto next = [&](int64_t count) {
      float* piece = at;
      at += count;
      return piece;
    };
    keys = next(d.z_pad() * d.width()), values = next(d.z_pad() * d.v_pad());
    scores = next(kTileRows * kKeyRun), rounded = next(kTileRows * kKeyRun / 2);
    o = next(kTileRows * d.v_pad()), q = next(kTileRows * d.width());
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
};

const void* element(const void* base, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(size_of(dtype));
}

/// Queries [s0, s0 + m) of one head.
void forward_tile(const Forward& f, const Buffers& w, int64_t s0, int64_t m) {
  const AttentionSizes& d = f.d;
  const MicroSet& set = *f.set;
  const int64_t cols = set.tile_cols(), words = d.width() / set.pair;
  const RowsOperand q = rows_operand(set, f.dtype, element(f.q, f.dtype, s0 * d.h * d.width()),
                                     d.h * d.width(), m, d.width(), w.q);
  float maximum[kTileRows], sum[kTileRows] = {};
  std::fill(maximum, maximum + kTileRows, -std::numeric_limits<float>::infinity());
  const KeyRange all = union_of(f.ranges + s0, m);
  bool first = true;
  for (int64_t z0 = all.begin / cols * cols; z0 < all.end; z0 += kKeyRun) {
    const int64_t keys = std::min<int64_t>(kKeyRun, all.end - z0);
    const int64_t pairs = ceil_div(keys, set.pair);
    multiply_panels(set, m, words, q.data, q.rs, 1, w.keys + z0 * words, words * cols, keys,
                    w.scores, kKeyRun, false);
    for (int64_t i = 0; i < m; ++i) {
      const KeyRange r = f.ranges[s0 + i];
      const int64_t begin = std::clamp<int64_t>(r.begin - z0, 0, keys);
      const int64_t end = std::clamp<int64_t>(r.end - z0, begin, keys);
      float* row = w.scores + i * kKeyRun;
      uint16_t* rounded =
          set.pair == 2 ? reinterpret_cast<uint16_t*>(w.rounded) + i * kKeyRun : nullptr;
      const float shrink = f.rows->softmax(row, begin, end, pairs * set.pair, f.scale, maximum + i,
                                           sum + i, rounded);
      if (shrink != 1.0f && !first) f.rows->scale(w.o + i * d.v_pad(), d.v, shrink);
    }
    const bool dot = set.pair == 2;
    multiply_panels(set, m, pairs, dot ? w.rounded : w.scores, dot ? kKeyRun / 2 : kKeyRun, 1,
                    w.values + z0 / set.pair * cols, ceil_div(d.z, set.pair) * cols, d.v, w.o,
                    d.v_pad(), !first);
    first = false;
  }
  for (int64_t i = 0; i < m; ++i) {
    float* o = w.o + i * d.v_pad();
    if (sum[i] == 0) std::fill(o, o + d.v, 0.0f);
    f.rows->finish(o, d.v, sum[i] > 0 ? 1.0f / sum[i] : 0.0f,
                   f.o + (s0 + i) * d.h * d.v * static_cast<int64_t>(size_of(f.dtype)), f.dtype);
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
  const int64_t step = ceil_div(ceil_div(d.s, pieces), kTileRows) * kTileRows;
  auto run = [&](int64_t task, int worker) {
    const int64_t head = task % heads, piece = pieces - 1 - task / heads;
    const int64_t batch = head / d.h, h = head % d.h;
    const Buffers w(buffers + worker * worker_words(d), d);
    const HeadOperands operands = head_operands(d, args.in[1], args.in[2], set, batch, h);
    operands.pack_keys_transposed(w.keys);
    operands.pack_values(w.values);
    const int64_t row = batch * d.s * d.h + h;
    const Forward f{d,
                    static_cast<float>(args.attrs.real("scale")),
                    dtype,
                    &set,
                    &attention_rows(),
                    ranges + batch * d.s,
                    static_cast<const std::byte*>(element(args.in[0].data, dtype, row * d.width())),
                    args.out[0].as<std::byte>() + row * d.v * static_cast<int64_t>(size_of(dtype)),
                    args.out[1].as<float>() + row};
    for (int64_t s = piece * step; s < std::min(d.s, (piece + 1) * step); s += kTileRows) {
      forward_tile(f, w, s, std::min<int64_t>(kTileRows, d.s - s));
    }
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
