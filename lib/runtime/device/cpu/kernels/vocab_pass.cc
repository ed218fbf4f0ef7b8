// Logits lie vocabulary-major in panels of tokens, so that W is read in place and softmax is
// vertical.
#include "runtime/device/cpu/kernels/vocab_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "runtime/device/cpu/kernels/attention_rows.h"
#include "runtime/device/cpu/kernels/vocab_rows.h"

namespace moetrain::cpu {
namespace {

/// Vocabulary rows of one block; even, and a multiple of the tile.
constexpr int64_t kBlockRows = 192;
/// Floats of logits one chunk of tokens may have: 16 MB, and tokens it has at most.
constexpr int64_t kChunkFloats = 4 << 20;
constexpr int64_t kChunkTokens = 256;
/// Tiles of W^T packed at once for the gradient of x.
constexpr int64_t kMaxTiles = 32;

int64_t chunk_tokens(int64_t vocab) {
  const int64_t fit = kChunkFloats / std::max<int64_t>(1, vocab) / kMaxTileCols * kMaxTileCols;
  return std::clamp<int64_t>(fit, kMaxTileCols, kChunkTokens);
}

int64_t pad_cols(int64_t n) { return ceil_div(n, kMaxTileCols) * kMaxTileCols; }

/// Every buffer of a pass, sized for one chunk.
struct Buffers {
  float *logits, *x_t, *x_rows, *dx_t, *maximum, *sum, *label_logit, *coefficient, *packed;
  int64_t packed_words;

  static int64_t per_worker(int64_t width) {
    return std::max(tile_pitch(kBlockRows) * kMaxTiles, kTileRows * width) + 16;
  }
  template <class Take>
  void layout(Take take, int64_t vocab, int64_t width, bool gradient, int threads) {
    const int64_t tokens = chunk_tokens(vocab), blocks = ceil_div(vocab, kBlockRows);
    logits = take(blocks * kBlockRows * tokens);
    x_t = take(width * tokens);
    x_rows = take(gradient ? pad_cols(width) * tokens : 0);
    dx_t = take(gradient ? width * tokens : 0);
    maximum = take(blocks * tokens);
    sum = take(blocks * tokens);
    label_logit = take(tokens);
    coefficient = take(tokens);
    packed_words = per_worker(width);
    packed = take(threads * packed_words);
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
  float* logits(int64_t block, int64_t panel) const {
    return w.logits + (block * panels + panel) * kBlockRows * cols;
  }
  /// The half of a logit block that holds pairs of rows once the block is rounded to bf16.
  float* pairs(int64_t block, int64_t panel) const {
    return logits(block, panel) + kBlockRows * cols / 2;
  }
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
  const int64_t words = ceil_div(c.cols, c.set.pair), step = words * c.cols;
  float* out = c.w.x_rows + panel * ceil_div(width, c.cols) * step;
  for (int64_t j = 0; j < width; j += c.cols, out += step) {
    c.set.pack.rows(c.element(x, j), width, n, std::min(c.cols, width - j), c.cols, out, c.cols);
  }
}

/// Logits of one vocabulary block for all panels, turned into exponentials of their own maximum.
void forward_block(const Chunk& c, int64_t block, float* scratch) {
  const int64_t rows = c.rows_of(block), width = c.pass.width, v0 = block * kBlockRows;
  for (int64_t panel = 0; panel < c.panels; ++panel) {
    float* out = c.logits(block, panel);
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
                                             out + i * c.cols, c.cols, false);
    }
    for (int64_t t = 0; t < c.tokens_of(panel); ++t) {
      const int64_t row = c.label_row(panel * c.cols + t) - v0;
      if (row >= 0 && row < rows) c.w.label_logit[panel * c.cols + t] = out[row * c.cols + t];
    }
    const int64_t at = (block * c.panels + panel) * c.cols;
    vocab_rows().exponentials(out, rows, c.cols, c.w.maximum + at, c.w.sum + at);
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

/// The gradient of one block of logits, and what it adds to dw.
void weight_block(const Chunk& c, int64_t block) {
  const int64_t rows = c.rows_of(block), width = c.pass.width, v0 = block * kBlockRows;
  const AttentionRows& move = attention_rows();
  for (int64_t panel = 0; panel < c.panels; ++panel) {
    float* g = c.logits(block, panel);
    vocab_rows().scale(g, rows, c.cols, c.w.sum + (block * c.panels + panel) * c.cols);
    for (int64_t t = 0; t < c.tokens_of(panel); ++t) {
      const int64_t row = c.label_row(panel * c.cols + t) - v0;
      if (row >= 0 && row < rows) g[row * c.cols + t] -= c.w.coefficient[panel * c.cols + t];
    }
    if (c.set.pair == 2) {
      move.finish(g, rows * c.cols, 1.0f, g, DType::kBF16);
      c.set.pack.rows(g, c.cols, rows, c.cols, c.cols, c.pairs(block, panel), c.cols);
    }
  }
  const int64_t step = ceil_div(c.cols, c.set.pair) * c.cols;
  for (int64_t j = 0; j < width; j += c.cols) {
    const int64_t cols = std::min(c.cols, width - j);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t m = std::min<int64_t>(kTileRows, rows - i);
      for (int64_t panel = 0; panel < c.panels; ++panel) {
        const int64_t pitch = c.cols / c.set.pair;
        const float* b = c.w.x_rows + (panel * ceil_div(width, c.cols) + j / c.cols) * step;
        tile_into(c.set, m, cols, ceil_div(c.tokens_of(panel), c.set.pair),
                  c.logits(block, panel) + i * pitch, pitch, 1, b, c.cols,
                  c.pass.dw + (v0 + i) * width + j, width, c.first + panel > 0);
      }
    }
  }
}

/// dx^T rows [d0, d0 + n) of all panels: the sum over all vocabulary blocks in turn.
void token_rows(const Chunk& c, int64_t d0, int64_t n, float* packed) {
  for (int64_t block = 0; block < c.blocks; ++block) {
    const int64_t rows = c.rows_of(block), words = ceil_div(rows, c.set.pair);
    c.set.pack.tiles(c.element(c.pass.w, block * kBlockRows * c.pass.width + d0), c.pass.width,
                     rows, n, packed, tile_pitch(words));
    for (int64_t panel = 0; panel < c.panels; ++panel) {
      const float* b = c.set.pair == 2 ? c.pairs(block, panel) : c.logits(block, panel);
      for (int64_t i = 0; i < n; i += kTileRows) {
        const int64_t m = std::min<int64_t>(kTileRows, n - i);
        const float* a = packed + i / kTileRows * tile_pitch(words);
        c.set.kernel[m - 1][c.set.vectors - 1](words, a, 1, kTileRows, b, c.cols,
                                               c.w.dx_t + (panel * c.pass.width + d0 + i) * c.cols,
                                               c.cols, block > 0);
      }
    }
  }
}

void store_dx(const Chunk& c, int64_t panel) {
  const int64_t width = c.pass.width;
  const float* from = c.w.dx_t + panel * width * c.cols;
  for (int64_t t = 0; t < c.tokens_of(panel); ++t) {
    const int64_t at = (c.first + panel * c.cols + t) * width;
    if (c.pass.dtype == DType::kF32) {
      float* to = static_cast<float*>(c.pass.dx) + at;
      for (int64_t i = 0; i < width; ++i) to[i] = from[i * c.cols + t];
    } else {
      uint16_t* to = static_cast<uint16_t*>(c.pass.dx) + at;
      for (int64_t i = 0; i < width; ++i) to[i] = float_to_bf16(from[i * c.cols + t]);
    }
  }
}

void run_chunk(const Chunk& c) {
  c.pool.run(c.panels, [&](int64_t panel, int) { pack_tokens(c, panel); });
  c.pool.run(c.blocks, [&](int64_t block, int worker) {
    forward_block(c, block, c.w.packed + worker * c.w.packed_words);
  });
  settle_tokens(c);
  if (!c.pass.dx) return;
  c.pool.run(c.blocks, [&](int64_t block, int) { weight_block(c, block); });
  const int64_t tiles = ceil_div(c.pass.width, kTileRows);
  const int64_t share = std::clamp<int64_t>(ceil_div(tiles, 2 * c.pool.size()), 1, kMaxTiles);
  c.pool.run(ceil_div(tiles, share), [&](int64_t task, int worker) {
    const int64_t d0 = task * share * kTileRows;
    token_rows(c, d0, std::min(share * kTileRows, c.pass.width - d0),
               c.w.packed + worker * c.w.packed_words);
  });
  c.pool.run(c.panels, [&](int64_t panel, int) { store_dx(c, panel); });
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
