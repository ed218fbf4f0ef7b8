// Logits lie vocabulary-major, so that W is read in place, softmax is vertical, and their gradients
// are in order for both products: rows for the gradient of W, pairs of rows for that of x.
#include "runtime/device/cpu/kernels/vocab_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "runtime/device/cpu/kernels/attention_rows.h"
#include "runtime/device/cpu/kernels/tiles.h"
#include "runtime/device/cpu/kernels/vocab_rows.h"

namespace moetrain::cpu {
namespace {

/// Vocabulary rows of one block; even, and a multiple of the tile.
constexpr int64_t kBlockRows = 192;
/// Floats of logits one chunk of tokens may have: 16 MB, and tokens it has at most.
constexpr int64_t kChunkFloats = 4 << 20;
constexpr int64_t kChunkTokens = 384;

int64_t chunk_tokens(int64_t vocab) {
  const int64_t fit = kChunkFloats / std::max<int64_t>(1, vocab) / kMaxTileCols * kMaxTileCols;
  return std::clamp<int64_t>(fit, kMaxTileCols, kChunkTokens);
}

int64_t pad_cols(int64_t n) { return ceil_div(n, kMaxTileCols) * kMaxTileCols; }

/// Floats from one row of logits to the next: where there are more than a few tokens an odd number
/// of cache lines, so that those of one token fall into different sets of the first-level cache.
int64_t logit_pitch(int64_t tokens) { return tokens > kMaxTileCols ? tokens + 16 : tokens; }
/// Elements between rows of rounded gradients, for the same reason.
int64_t rounded_pitch(int64_t tokens) { return tokens + 32; }

/// Every buffer of a pass, sized for one chunk.
struct Buffers {
  float *logits, *x_t, *x_rows, *dx, *maximum, *sum, *label_logit, *coefficient, *scratch;
  int64_t pitch, dx_pitch, scratch_words;

  static int64_t per_worker(int64_t width, int64_t tokens) {
    return std::max({kBlockRows * kMaxTileCols, kBlockRows * rounded_pitch(tokens) / 2,
                     kTileRows * width}) +
           16;
  }
  template <class Take>
  void layout(Take take, int64_t vocab, int64_t width, bool gradient, int threads) {
    const int64_t tokens = chunk_tokens(vocab), blocks = ceil_div(vocab, kBlockRows);
    pitch = logit_pitch(tokens);
    dx_pitch = ceil_div(width, 16) * 16;
    logits = take(blocks * kBlockRows * pitch);
    x_t = take(width * tokens);
    x_rows = take(gradient ? pad_cols(width) * tokens : 0);
    dx = take(gradient ? dx_pitch * tokens : 0);
    maximum = take(blocks * tokens);
    sum = take(blocks * tokens);
    label_logit = take(tokens);
    coefficient = take(tokens);
    scratch_words = per_worker(width, tokens);
    scratch = take(threads * scratch_words);
  }
};

struct Chunk {
  const VocabPass& pass;
  const Buffers& w;
  const MicroSet& set;
  ThreadPool& pool;
  int64_t first, tokens;  ///< of this chunk
  int64_t cols, panels, blocks;

  int64_t x_words() const { return ceil_div(pass.width, set.pair); }
  int64_t rows_of(int64_t block) const {
    return std::min(kBlockRows, pass.vocab - block * kBlockRows);
  }
  int64_t tokens_of(int64_t panel) const { return std::min(cols, tokens - panel * cols); }
  /// Rows w.pitch floats apart.
  float* logits(int64_t block) const { return w.logits + block * kBlockRows * w.pitch; }
  int64_t token_words() const { return ceil_div(tokens, set.pair); }
  const std::byte* element(const void* base, int64_t index) const {
    return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(size_of(pass.dtype));
  }
  int64_t label_row(int64_t token) const { return pass.labels[first + token] - pass.vocab_begin; }
};

void pack_tokens(const Chunk& c, int64_t panel) {
  const int64_t width = c.pass.width, n = c.tokens_of(panel);
  const std::byte* x = c.element(c.pass.x, (c.first + panel * c.cols) * width);
  c.set.pack.transposed(x, width, width, n, c.cols, c.w.x_t + panel * c.x_words() * c.cols, c.cols);
  if (!c.pass.dx) return;
  const int64_t cols = panel_cols(c.set, width);
  float* out = c.w.x_rows + panel * c.cols / c.set.pair * cols;
  for (int64_t j = 0; j < width; j += cols, out += c.token_words() * cols)
    c.set.pack.rows(c.element(x, j), width, n, std::min(cols, width - j), cols, out, cols);
}

/// Logits of one vocabulary block for all panels, turned into exponentials of their own maximum.
void forward_block(const Chunk& c, int64_t block, float* scratch) {
  const int64_t rows = c.rows_of(block), width = c.pass.width, v0 = block * kBlockRows;
  for (int64_t panel = 0; panel < c.panels; ++panel) {
    float* out = c.logits(block) + panel * c.cols;
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t m = std::min<int64_t>(kTileRows, rows - i);
      const void* a = c.element(c.pass.w, (v0 + i) * width);
      int64_t rs = width / c.set.pair;
      if (c.set.convert) {
        c.set.pack.rows(a, width, m, width, width, scratch, width);
        a = scratch;
      }
      c.set.kernel[m - 1][c.set.vectors - 1](c.x_words(), a, rs, 1,
                                             c.w.x_t + panel * c.x_words() * c.cols, c.cols,
                                             out + i * c.w.pitch, c.w.pitch, false);
    }
    for (int64_t t = 0; t < c.tokens_of(panel); ++t) {
      const int64_t row = c.label_row(panel * c.cols + t) - v0;
      if (row >= 0 && row < rows) c.w.label_logit[panel * c.cols + t] = out[row * c.w.pitch + t];
    }
    const int64_t at = (block * c.panels + panel) * c.cols;
    vocab_rows().exponentials(out, c.w.pitch, rows, c.cols, c.w.maximum + at, c.w.sum + at);
  }
}

/// Joins the blocks' statistics of every token; leaves in `sum` the factor each block's
/// exponentials need to become the gradient of the logits.
void settle_tokens(const Chunk& c) {
  for (int64_t t = 0; t < c.panels * c.cols; ++t) {
    const int64_t step = c.panels * c.cols;
    if (t >= c.tokens) {
      for (int64_t b = 0; b < c.blocks; ++b) c.w.sum[b * step + t] = 0;
      c.w.coefficient[t] = 0;
      continue;
    }
    float top = c.w.maximum[t];
    for (int64_t b = 1; b < c.blocks; ++b) top = std::max(top, c.w.maximum[b * step + t]);
    double sum = 0;
    for (int64_t b = 0; b < c.blocks; ++b) {
      sum += static_cast<double>(c.w.sum[b * step + t]) * std::exp(c.w.maximum[b * step + t] - top);
    }
    const int64_t row = c.label_row(t);
    const float label = row >= 0 && row < c.pass.vocab ? c.w.label_logit[t] : 0.0f;
    float coefficient = 0;
    const double lse = c.pass.settle(c.pass.context, c.first + t, top, sum, label, &coefficient);
    c.w.coefficient[t] = coefficient;
    if (!c.pass.dx) continue;
    for (int64_t b = 0; b < c.blocks; ++b) {
      const double shifted = c.w.maximum[b * step + t] - lse;
      c.w.sum[b * step + t] =
          coefficient == 0 ? 0.0f : coefficient * static_cast<float>(std::exp(shifted));
    }
  }
}

/// One register tile into C whose row end may cut through a vector.
void tile_into(const MicroSet& set, int64_t m, int64_t cols, int64_t words, const void* a,
               int64_t rs, int64_t cs, const float* b, int64_t ldb, float* c, int64_t ldc,
               bool accumulate) {
  const int64_t vectors = ceil_div(cols, set.lanes);
  const MicroKernel kernel = set.kernel[m - 1][vectors - 1];
  if (vectors * set.lanes == cols) return kernel(words, a, rs, cs, b, ldb, c, ldc, accumulate);
  float edge[kTileRows * kMaxTileCols];
  kernel(words, a, rs, cs, b, ldb, edge, kMaxTileCols, false);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float& to = c[i * ldc + j];
      to = accumulate ? to + edge[i * kMaxTileCols + j] : edge[i * kMaxTileCols + j];
    }
  }
}

/// The gradient of one block of logits; rounded to bf16, its rows go to `rounded`.
void gradient_block(const Chunk& c, int64_t block, uint16_t* rounded) {
  const int64_t rows = c.rows_of(block), v0 = block * kBlockRows, step = c.panels * c.cols;
  const int64_t pitch = c.w.pitch, out = rounded_pitch(step);
  float* g = c.logits(block);
  const float* factor = c.w.sum + block * step;
  float at_label[kChunkTokens];
  auto each_label = [&](auto&& body) {
    for (int64_t t = 0; t < c.tokens; ++t) {
      const int64_t row = c.label_row(t) - v0;
      if (row >= 0 && row < rows) body(t, row);
    }
  };
  each_label([&](int64_t t, int64_t row) {
    at_label[t] = g[row * pitch + t] * factor[t] - c.w.coefficient[t];
  });
  vocab_rows().gradients(g, pitch, rows, step, factor, rounded, out);
  each_label([&](int64_t t, int64_t row) {
    if (!rounded) {
      g[row * pitch + t] = at_label[t];
      return;
    }
    const uint16_t value = float_to_bf16(at_label[t]);
    rounded[row * out + t] = value;
    reinterpret_cast<uint16_t*>(g + row / 2 * pitch + t)[row % 2] = value;
  });
}

/// The gradient of one block of logits, and what it adds to dw.
void weight_block(const Chunk& c, int64_t block, float* scratch) {
  const int64_t rows = c.rows_of(block), width = c.pass.width, v0 = block * kBlockRows;
  const bool dot = c.set.pair == 2;
  gradient_block(c, block, dot ? reinterpret_cast<uint16_t*>(scratch) : nullptr);
  const float* a = dot ? scratch : c.logits(block);
  const int64_t pitch = dot ? rounded_pitch(c.panels * c.cols) / 2 : c.w.pitch;
  const int64_t cols = panel_cols(c.set, width);
  RowsAhead ahead;
  if (block + 1 < c.blocks) {
    ahead.add(reinterpret_cast<const std::byte*>(c.logits(block + 1)), c.w.pitch * 4,
              c.rows_of(block + 1), c.panels * c.cols * 4);
  }
  ahead.spread(ceil_div(width, cols) * ceil_div(rows, kTileRows));
  const float* b = c.w.x_rows;
  for (int64_t j = 0; j < width; j += cols, b += c.token_words() * cols) {
    for (int64_t i = 0; i < rows; i += kTileRows) {
      ahead.turn();
      tile_into(c.set, std::min<int64_t>(kTileRows, rows - i), std::min(cols, width - j),
                c.token_words(), a + i * pitch, pitch, 1, b, cols, c.pass.dw + (v0 + i) * width + j,
                width, c.first > 0);
    }
  }
}

/// Columns [begin, end) of dx of all tokens: the sum over all vocabulary blocks in turn.
void token_columns(const Chunk& c, int64_t begin, int64_t end, float* packed) {
  const int64_t width = c.pass.width, cols = panel_cols(c.set, width);
  const int64_t size = static_cast<int64_t>(size_of(c.pass.dtype));
  for (int64_t block = 0; block < c.blocks; ++block) {
    const int64_t rows = c.rows_of(block), words = ceil_div(rows, c.set.pair);
    RowsAhead ahead;
    if (block + 1 < c.blocks) {
      const int64_t v1 = (block + 1) * kBlockRows, next = c.rows_of(block + 1);
      ahead.add(c.element(c.pass.w, v1 * width + begin), width * size, next, (end - begin) * size);
      ahead.add(reinterpret_cast<const std::byte*>(c.logits(block + 1)), c.w.pitch * 4,
                ceil_div(next, c.set.pair), c.panels * c.cols * 4);
    }
    ahead.spread(ceil_div(end - begin, cols) * ceil_div(c.tokens, kTileRows));
    for (int64_t j = begin; j < end; j += cols) {
      const int64_t n = std::min(cols, end - j), vectors = ceil_div(n, c.set.lanes);
      c.set.pack.rows(c.element(c.pass.w, block * kBlockRows * width + j), width, rows, n,
                      vectors * c.set.lanes, packed, cols);
      for (int64_t i = 0; i < c.tokens; i += kTileRows) {
        ahead.turn();
        c.set.kernel[std::min<int64_t>(kTileRows, c.tokens - i) - 1][vectors - 1](
            words, c.logits(block) + i, 1, c.w.pitch, packed, cols, c.w.dx + i * c.w.dx_pitch + j,
            c.w.dx_pitch, block > 0);
      }
    }
  }
}

void run_chunk(const Chunk& c) {
  c.pool.run(c.panels, [&](int64_t panel, int) { pack_tokens(c, panel); });
  c.pool.run(c.blocks, [&](int64_t block, int worker) {
    forward_block(c, block, c.w.scratch + worker * c.w.scratch_words);
  });
  settle_tokens(c);
  if (!c.pass.dx) return;
  c.pool.run(c.blocks, [&](int64_t block, int worker) {
    weight_block(c, block, c.w.scratch + worker * c.w.scratch_words);
  });
  const int64_t width = c.pass.width, cols = panel_cols(c.set, width);
  const int64_t panels = ceil_div(width, cols);
  const int64_t group = (c.pool.size() == 1 ? panels : ceil_div(panels, 2 * c.pool.size())) * cols;
  c.pool.run(ceil_div(width, group), [&](int64_t task, int worker) {
    token_columns(c, task * group, std::min(width, (task + 1) * group),
                  c.w.scratch + worker * c.w.scratch_words);
  });
  c.pool.run(c.panels, [&](int64_t panel, int) {
    const int64_t t = panel * c.cols;
    attention_rows().finish_rows(
        c.w.dx + t * c.w.dx_pitch, c.w.dx_pitch, c.tokens_of(panel), width, 1.0f,
        const_cast<std::byte*>(c.element(c.pass.dx, (c.first + t) * width)), width, c.pass.dtype);
  });
}

}  // namespace

size_t vocab_pass_workspace(int64_t vocab, int64_t width, bool gradient, int threads) {
  size_t bytes = kCarverSlack;
  Buffers buffers;
  buffers.layout(
      [&](int64_t floats) {
        bytes += round_up_64(floats * sizeof(float));
        return static_cast<float*>(nullptr);
      },
      vocab, width, gradient, threads);
  return bytes;
}

void run_vocab_pass(const VocabPass& pass, std::byte* workspace, size_t workspace_bytes,
                    ThreadPool& pool) {
  Buffers buffers;
  std::byte* next = workspace + (-reinterpret_cast<uintptr_t>(workspace) & 63);
  buffers.layout(
      [&](int64_t floats) {
        float* piece = reinterpret_cast<float*>(next);
        next += round_up_64(floats * sizeof(float));
        return piece;
      },
      pass.vocab, pass.width, pass.dx != nullptr, pool.size());
  MT_CHECK(next <= workspace + workspace_bytes, "workspace of ", workspace_bytes,
           " bytes is too small");
  if (pass.dw && pass.tokens == 0) std::memset(pass.dw, 0, pass.vocab * pass.width * sizeof(float));
  const MicroSet& set = micro_set(pass.dtype, pass.width % 2 == 0);
  const int64_t step = chunk_tokens(pass.vocab), cols = set.tile_cols();
  for (int64_t first = 0; first < pass.tokens; first += step) {
    const int64_t tokens = std::min(step, pass.tokens - first);
    run_chunk({pass, buffers, set, pool, first, tokens, cols, ceil_div(tokens, cols),
               ceil_div(pass.vocab, kBlockRows)});
  }
}

}  // namespace moetrain::cpu
