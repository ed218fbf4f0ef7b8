// Cuts products into tasks of column panels and row ranges; a task packs its panels and runs the
// tiles.
#include "runtime/device/cpu/kernels/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/device/cpu/kernels/micro.h"
#include "runtime/device/cpu/kernels/unpacked.h"

namespace moetrain::cpu {
namespace {

/// Words of k in one packed block: with 64 columns half of a 1 MB second-level cache.
constexpr int64_t kBlock = 2048;
/// The same when A is packed: fewer, so that several panels share one packed A tile.
constexpr int64_t kBlockPackedA = 256;
/// Panels of a task when A is packed.
constexpr int64_t kPanelsPackedA = kBlock / kBlockPackedA;
/// Rows of A packed at once: whole cache lines of a transposed A, read while they are near.
constexpr int64_t kPackRows = 8 * kTileRows;
/// Rows of the float strip that holds C between blocks of k when C is bf16.
constexpr int64_t kStripRows = 512;
/// Fewest rows worth packing panels again for.
constexpr int64_t kFewRows = 96;
/// Rows of a task, where the next one can go on with the same panel: few, so that the last ones of
/// two workers end at about the same time.
constexpr int64_t kPieceRows = 256;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// How one product is walked through; the same for all parts of a batch up to m.
struct Form {
  const MicroSet* set;
  const UnpackedSet* unpacked;  ///< null: there is none
  bool pack_a;
  int64_t block;   ///< words of k per block
  int64_t panels;  ///< column panels per task
  bool strip;      ///< C is bf16 and k has several blocks
  DType operands, c_type;
};

bool needs_packed_a(const MicroSet& set, const Gemm& g) {
  if (set.convert || g.a_cs != 1) return true;
  return set.pair == 2 && (g.k % 2 != 0 || g.a_rs % 2 != 0);
}

Form form_of(const Gemm& g, DType operands, DType c_type) {
  Form f;
  f.set = &micro_set(operands);
  f.unpacked = unpacked_set(operands);
  f.pack_a = needs_packed_a(*f.set, g);
  f.block = f.pack_a ? kBlockPackedA : kBlock;
  f.panels = f.pack_a ? kPanelsPackedA : 1;
  f.operands = operands;
  f.c_type = c_type;
  f.strip = c_type != DType::kF32 && ceil_div(g.k, f.set->pair) > f.block;
  return f;
}

size_t panel_words() { return static_cast<size_t>(kBlock) * kMaxTileCols; }
size_t a_words() {
  return static_cast<size_t>(tile_pitch(kBlockPackedA)) * (kPackRows / kTileRows);
}
size_t strip_words(bool strip) {
  return strip ? static_cast<size_t>(kStripRows) * kMaxTileCols * kPanelsPackedA : 0;
}
size_t words_per_worker(bool strip) { return panel_words() + a_words() + strip_words(strip); }

/// Asks for the cache lines of an operand a few at a time, while tiles of the one before it run:
/// packing them later then waits for no memory.
class Ahead {
 public:
  /// `rows` rows of `bytes` bytes, `pitch` bytes apart, over about `turns` turns.
  void begin(const void* from, int64_t pitch, int64_t rows, int64_t bytes, int64_t turns) {
    row_ = reinterpret_cast<uintptr_t>(from), pitch_ = pitch, rows_ = rows, bytes_ = bytes;
    at_ = row_ & ~uintptr_t{63};
    const int64_t lines = rows * (ceil_div(bytes, 64) + 1);
    // Many at once would only wait for one another: where turns are few, asking does not pay.
    per_turn_ = lines > kMostLines * turns ? 0 : ceil_div(lines, std::max<int64_t>(1, turns));
  }
  void turn() {
    for (int64_t i = 0; i < per_turn_ && rows_ > 0; ++i) {
      __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
      at_ += 64;
      if (at_ < row_ + bytes_) continue;
      row_ += pitch_, --rows_;
      at_ = row_ & ~uintptr_t{63};
    }
  }

 private:
  static constexpr int64_t kMostLines = 400;
  uintptr_t row_ = 0, at_ = 0;
  int64_t pitch_ = 0, rows_ = 0, bytes_ = 0, per_turn_ = 0;
};

/// The buffers of one worker.
struct Scratch {
  float* panels;
  float* a;
  float* strip;
  int64_t* packed;  ///< the panel that `panels` holds from the task before, or -1
};

const void* element(const void* base, DType type, int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(size_of(type));
}

/// One tile that does not go straight to a float C: computed aside, then added or rounded in.
void store_tile(const Form& f, const float* tile, int64_t ld, int64_t rows, int64_t cols,
                const Gemm& g, int64_t i0, int64_t j0, bool accumulate) {
  if (f.c_type == DType::kBF16) {
    f.set->round(tile, ld, rows, cols, static_cast<uint16_t*>(g.c) + i0 * g.ldc + j0, g.ldc);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = tile + i * ld;
    float* to = static_cast<float*>(g.c) + (i0 + i) * g.ldc + j0;
    for (int64_t j = 0; j < cols; ++j) to[j] = accumulate ? to[j] + from[j] : from[j];
  }
}

/// Packs rows [i0, i0 + rows) of A, k in [p0, p0 + k), as words, tile after tile; sets the strides
/// to read a tile with.
void pack_a(const Form& f, const Gemm& g, int64_t i0, int64_t rows, int64_t p0, int64_t k,
            float* out, int64_t& rs, int64_t& cs) {
  if (g.a_cs != 1) {
    f.set->pack.tiles(element(g.a, f.operands, p0 * g.a_cs + i0), g.a_cs, k, rows, out,
                      tile_pitch(ceil_div(k, f.set->pair)));
    rs = 1;
    cs = kTileRows;
    return;
  }
  const int64_t words = ceil_div(k, f.set->pair);
  rs = words;
  cs = 1;
  if (f.set->pair == 1) {
    f.set->pack.rows(element(g.a, f.operands, i0 * g.a_rs + p0), g.a_rs, rows, k, k, out, k);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    uint16_t* to = reinterpret_cast<uint16_t*>(out + i * words);
    std::memcpy(to, element(g.a, f.operands, (i0 + i) * g.a_rs + p0), k * 2);
    if (k % 2) to[k] = 0;
  }
}

/// One task: rows [m0, m1) and columns [n0, n1) of a product.
struct Task {
  Gemm g;
  int64_t m0, m1, n0, n1;
  int64_t panel;        ///< numbers its columns of its part; consecutive tasks may share them
  int64_t piece, pieces;  ///< which of the tasks that share them, and of how many
};

/// Columns [j, j + cols) of B, k in [p0, p0 + k), as one panel of words.
void pack_panel(const MicroSet& set, const Gemm& g, DType operands, int64_t p0, int64_t k,
                int64_t j, int64_t cols, float* panel) {
  const int64_t width = set.tile_cols(), pad = ceil_div(cols, set.lanes) * set.lanes;
  if (g.b_transposed)
    set.pack.transposed(element(g.b, operands, j * g.ldb + p0), g.ldb, k, cols, pad, panel, width);
  else
    set.pack.rows(element(g.b, operands, p0 * g.ldb + j), g.ldb, k, cols, pad, panel, width);
}

/// Rows of the next tile when `left` are left: not a full tile and then a sliver, which would be
/// bound by loads, but two halves.
int64_t tile_rows(int64_t left) {
  if (left <= kTileRows) return left;
  return left < 2 * kTileRows ? ceil_div(left, 2) : kTileRows;
}

const float* packed_panel(const Form& f, const Gemm& g, int64_t j, int64_t p0) {
  return g.packed_b + j * ceil_div(g.k, f.set->pair) + p0 / f.set->pair * f.set->tile_cols();
}

/// Announces what pack_panel will read of B for words from p0 on, or the `piece`th of `pieces` of it.
void announce_b(const Form& f, const Task& t, int64_t p0, int64_t piece, int64_t pieces,
                int64_t turns, Ahead& ahead) {
  const int64_t size = static_cast<int64_t>(size_of(f.operands));
  const int64_t k = std::min(f.block * f.set->pair, t.g.k - p0), n = t.n1 - t.n0;
  auto begin = [&](const void* from, int64_t pitch, int64_t rows, int64_t bytes) {
    const int64_t first = rows * piece / pieces, end = rows * (piece + 1) / pieces;
    ahead.begin(static_cast<const std::byte*>(from) + first * pitch, pitch, end - first, bytes,
                turns);
  };
  if (t.g.b_transposed)
    begin(element(t.g.b, f.operands, t.n0 * t.g.ldb + p0), t.g.ldb * size, n, k * size);
  else
    begin(element(t.g.b, f.operands, p0 * t.g.ldb + t.n0), t.g.ldb * size, k, n * size);
}

/// Announces what pack_a will read of A from row i and word p0 on.
void announce_a(const Form& f, const Task& t, int64_t i, int64_t p0, int64_t turns, Ahead& ahead) {
  if (t.g.a_cs == 1) return;
  const int64_t size = static_cast<int64_t>(size_of(f.operands));
  const int64_t k = std::min(f.block * f.set->pair, t.g.k - p0);
  ahead.begin(element(t.g.a, f.operands, p0 * t.g.a_cs + i), t.g.a_cs * size, k,
              std::min(kPackRows, t.m1 - i) * size, turns);
}

/// Rows up to which B is read where it stands: packing a transposed B costs more.
constexpr int64_t kMostRows = 16, kMostRowsTransposed = 48;
static_assert(kMostRowsTransposed * kUnpackedPitch <= kBlock * kMaxTileCols);

/// Whether the task's tiles can read B where it stands, and should.
bool reads_in_place(const Form& f, const Task& t) {
  const Gemm& g = t.g;
  const int64_t pair = f.set->pair, cols = t.n1 - t.n0;
  const int64_t most = g.b_transposed ? kMostRowsTransposed : kMostRows;
  if (!f.unpacked || f.pack_a || f.strip || g.packed_b || t.m1 - t.m0 > most ||
      g.k > kUnpackedSteps * pair)
    return false;
  if (!g.b_transposed) return cols % f.unpacked->plain_cols == 0;
  return g.ldb % pair == 0 && cols % f.unpacked->transposed_cols == 0 &&
         g.k % (f.unpacked->transposed_steps * pair) == 0;
}

void run_in_place(const Form& f, const Task& t, const Scratch& scratch) {
  const Gemm& g = t.g;
  const int64_t pair = f.set->pair, rows = t.m1 - t.m0, words = g.k / pair;
  *scratch.packed = -1;
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(scratch.panels + i * kUnpackedPitch, element(g.a, f.operands, (t.m0 + i) * g.a_rs),
                words * sizeof(float));
  }
  const int64_t width = g.b_transposed ? f.unpacked->transposed_cols : f.unpacked->plain_cols;
  const int64_t ldb = g.b_transposed ? g.ldb / pair : g.ldb;
  const int64_t step = ceil_div(rows, ceil_div(rows, kUnpackedRows));
  float edge[kUnpackedRows * kMaxTileCols];
  for (int64_t j = t.n0; j < t.n1; j += width) {
    const void* b = element(g.b, f.operands, g.b_transposed ? j * g.ldb : j);
    for (int64_t i = t.m0; i < t.m1; i += step) {
      const int64_t n = std::min(step, t.m1 - i);
      const UnpackedKernel kernel =
          g.b_transposed ? f.unpacked->transposed[n - 1] : f.unpacked->plain[n - 1];
      const float* a = scratch.panels + (i - t.m0) * kUnpackedPitch;
      if (f.c_type == DType::kF32) {
        kernel(words, a, b, ldb, static_cast<float*>(g.c) + i * g.ldc + j, g.ldc, g.accumulate);
      } else {
        kernel(words, a, b, ldb, edge, width, false);
        store_tile(f, edge, width, n, width, g, i, j, false);
      }
    }
  }
}

/// Runs one task; `next` is the one this worker probably gets then, `after` the first one after it
/// with other columns; or null.
void run_task(const Form& f, const Task& task, const Task* next, const Task* after,
              const Scratch& scratch) {
  if (reads_in_place(f, task)) return run_in_place(f, task, scratch);
  const Gemm& g = task.g;
  const int64_t m0 = task.m0, m1 = task.m1, n0 = task.n0, n1 = task.n1;
  Ahead ahead_a, ahead_b;
  const MicroSet& set = *f.set;
  const int64_t width = set.tile_cols(), lanes = set.lanes, pair = set.pair;
  float edge[kTileRows * kMaxTileCols];
  const int64_t step = f.block * pair;
  for (int64_t p0 = 0; p0 < g.k; p0 += step) {
    const int64_t k = std::min(step, g.k - p0);
    const int64_t words = ceil_div(k, pair);
    const bool last = p0 + k == g.k;
    const bool add = g.accumulate || p0 > 0;
    int64_t rs = g.a_rs / pair, cs = g.a_cs;
    const int64_t pitch = g.a_cs == 1 ? kTileRows * words : tile_pitch(words);
    // Rows of float that stand as a panel does, only further apart.
    const bool stands = !g.packed_b && !g.b_transposed && pair == 1 && !set.convert &&
                        (n1 - n0) % lanes == 0 && m1 - m0 <= kMostRows;
    const bool there =
        g.packed_b || stands || (last && p0 == 0 && *scratch.packed == task.panel);
    for (int64_t j = n0; j < n1 && !there; j += width) {
      pack_panel(set, g, f.operands, p0, k, j, std::min(width, n1 - j),
                 scratch.panels + (j - n0) * f.block);
    }
    *scratch.packed = last && p0 == 0 && !stands ? task.panel : -1;
    const int64_t panels = ceil_div(n1 - n0, width);
    const int64_t turns = panels * ceil_div(m1 - m0, kTileRows);
    if (!last && !g.packed_b)
      announce_b(f, task, p0 + k, 0, 1, turns, ahead_b);
    else if (last && after && !g.packed_b)
      announce_b(f, *after, 0, task.piece, task.pieces, turns, ahead_b);
    for (int64_t i = m0, rows = 0; i < m1; i += rows) {
      rows = f.pack_a ? std::min<int64_t>(kTileRows, m1 - i) : tile_rows(m1 - i);
      const void* a = scratch.a + (i - m0) % kPackRows / kTileRows * pitch;
      if (!f.pack_a) {
        a = element(g.a, f.operands, i * g.a_rs + p0);
      } else if ((i - m0) % kPackRows == 0) {
        pack_a(f, g, i, std::min(kPackRows, m1 - i), p0, k, scratch.a, rs, cs);
        const int64_t tiles = panels * (kPackRows / kTileRows);
        if (i + kPackRows < m1)
          announce_a(f, task, i + kPackRows, p0, tiles, ahead_a);
        else if (!last)
          announce_a(f, task, m0, p0 + k, tiles, ahead_a);
        else if (next)
          announce_a(f, *next, next->m0, 0, tiles, ahead_a);
      }
      for (int64_t j = n0; j < n1; j += width) {
        ahead_a.turn(), ahead_b.turn();
        const int64_t cols = std::min(width, n1 - j);
        const int64_t vectors = ceil_div(cols, lanes);
        const int64_t ldb = stands ? g.ldb : width;
        const float* panel =
            g.packed_b ? packed_panel(f, g, j, p0) : scratch.panels + (j - n0) * f.block;
        if (stands) panel = static_cast<const float*>(g.b) + p0 * g.ldb + j;
        const MicroKernel kernel = set.kernel[rows - 1][vectors - 1];
        if (f.strip) {
          float* c = scratch.strip + (i - m0) * (n1 - n0 + kMaxTileCols) + (j - n0);
          const int64_t ld = n1 - n0 + kMaxTileCols;
          kernel(words, a, rs, cs, panel, ldb, c, ld, p0 > 0);
          if (last) store_tile(f, c, ld, rows, cols, g, i, j, false);
        } else if (f.c_type == DType::kF32 && cols == vectors * lanes) {
          kernel(words, a, rs, cs, panel, ldb, static_cast<float*>(g.c) + i * g.ldc + j, g.ldc,
                 add);
        } else {
          for (int64_t r = 0; r < rows; ++r) {
            const auto* to =
                static_cast<const std::byte*>(element(g.c, f.c_type, (i + r) * g.ldc + j));
            __builtin_prefetch(to);
            __builtin_prefetch(to + 64);
          }
          kernel(words, a, rs, cs, panel, ldb, edge, kMaxTileCols, false);
          store_tile(f, edge, kMaxTileCols, rows, cols, g, i, j, add);
        }
      }
    }
  }
}

void clear_output(const Gemm& g, DType c_type) {
  if (g.accumulate) return;
  for (int64_t i = 0; i < g.m; ++i) {
    std::memset(static_cast<std::byte*>(g.c) + i * g.ldc * static_cast<int64_t>(size_of(c_type)), 0,
                g.n * size_of(c_type));
  }
}

/// How every part of a batch is cut: ranges of rows, in these groups of panels, in these pieces that
/// share packed panels. Tasks are numbered in this order, so that a worker's share of them is whole
/// ranges of rows: it reads rows it wrote itself in the operation before.
struct Cut {
  int64_t panel_cols = 0;  ///< columns of a task
  int64_t groups = 1;
  int64_t range_rows = 1;  ///< most rows of a range
  int64_t piece_rows = 1;  ///< most rows of a piece

  int64_t ranges(const Gemm& g) const { return ceil_div(g.m, range_rows); }
  int64_t pieces(const Gemm& g) const { return ceil_div(ceil_div(g.m, ranges(g)), piece_rows); }
  int64_t tasks(const Gemm& g) const {
    return g.m <= 0 || g.n <= 0 ? 0 : ranges(g) * groups * pieces(g);
  }
};

/// Even parts of whole tiles.
int64_t bound(int64_t rows, int64_t parts, int64_t index) {
  return std::min(rows, ceil_div(rows, kTileRows) * index / parts * kTileRows);
}

/// `parts`: how many parts of the largest one's size the batch amounts to; `rows`: of the largest.
Cut cut_of(const Form& f, const Gemm& first, int64_t parts, int64_t rows, int threads) {
  Cut cut;
  const int64_t width = f.set->tile_cols();
  const int64_t panels = ceil_div(std::max<int64_t>(first.n, 1), width);
  int64_t per_task = std::min(f.panels, panels);
  int64_t ranges = 1;
  rows = std::max<int64_t>(rows, 1);
  auto groups = [&] { return ceil_div(panels, per_task); };
  if (f.pack_a) {
    // Shorter ranges of rows cost packings of B, fewer panels packings of A.
    const int64_t wanted = threads == 1 ? 1 : 2 * threads;
    const int64_t most = std::max<int64_t>(1, rows / kFewRows);
    ranges = std::clamp<int64_t>(ceil_div(wanted, parts * groups()), 1, most);
    while (per_task > 4 && parts * groups() * ranges < wanted) per_task = ceil_div(per_task, 2);
    while (per_task > 1 && parts * groups() * ranges < threads) --per_task;
  } else {
    const int64_t most = std::max<int64_t>(1, rows / (2 * kFewRows));
    ranges = std::clamp<int64_t>(ceil_div(threads, parts), 1, most);
  }
  cut.groups = groups();
  cut.panel_cols = ceil_div(panels, cut.groups) * width;
  cut.range_rows = ceil_div(rows, ranges);
  cut.piece_rows = cut.range_rows;
  if (threads > 1 && !f.pack_a && ceil_div(first.k, f.set->pair) <= f.block)
    cut.piece_rows = std::min(cut.range_rows, kPieceRows);
  if (f.strip) cut.piece_rows = std::min(cut.piece_rows, kStripRows - 4 * kTileRows);
  return cut;
}

Gemm same_gemm(const void* context, int64_t) { return *static_cast<const Gemm*>(context); }

}  // namespace

size_t gemm_workspace(DType c_type, int64_t k, int threads) {
  const bool strip = c_type != DType::kF32 && k > kBlockPackedA;
  // A strip's rows carry one tile of padding behind each task's columns.
  const size_t extra = strip ? static_cast<size_t>(kStripRows) * kMaxTileCols : 0;
  return threads * (words_per_worker(strip) + extra) * sizeof(float) + (threads + 1) * 64;
}

int64_t packed_b_floats(int64_t n, int64_t k, DType operands) {
  const MicroSet& set = micro_set(operands);
  return ceil_div(n, set.tile_cols()) * set.tile_cols() * ceil_div(k, set.pair);
}

void pack_b(const GemmBatch& batch, DType operands, float* out, ThreadPool& pool) {
  const Gemm first = batch.part(batch.context, 0);
  const MicroSet& set = micro_set(operands);
  const int64_t width = set.tile_cols(), panels = ceil_div(first.n, width);
  const int64_t step = ceil_div(first.k, set.pair) * width;
  pool.run(batch.count * panels, [&](int64_t task, int) {
    const Gemm g = batch.part(batch.context, task / panels);
    const int64_t j = task % panels * width;
    pack_panel(set, g, operands, 0, g.k, j, std::min(width, g.n - j), out + task * step);
  });
}

void run_gemm(const GemmBatch& batch, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool) {
  if (batch.count == 0) return;
  const Gemm first = batch.part(batch.context, 0);
  const Form form = form_of(first, operands, c_type);
  int64_t rows = 0;
  double work = 0, largest = 1;
  for (int64_t i = 0; i < batch.count; ++i) {
    const Gemm g = batch.part(batch.context, i);
    const double own = static_cast<double>(g.m) * static_cast<double>(g.k);
    rows = std::max(rows, g.m);
    work += own;
    largest = std::max(largest, own);
  }
  const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(work / largest));
  const Cut cut = cut_of(form, first, parts, rows, pool.size());
  const size_t extra = form.strip ? static_cast<size_t>(kStripRows) * kMaxTileCols : 0;
  const size_t words = words_per_worker(form.strip) + extra;
  std::byte* aligned = workspace + (-reinterpret_cast<uintptr_t>(workspace) & 63);
  std::byte* notes = aligned + pool.size() * words * sizeof(float);  // a cache line per worker
  MT_CHECK(notes + pool.size() * 64 <= workspace + workspace_bytes, "workspace of ", workspace_bytes,
           " bytes is too small");
  auto note = [&](int worker) { return reinterpret_cast<int64_t*>(notes + worker * 64); };
  for (int w = 0; w < pool.size(); ++w) *note(w) = -1;

  int64_t tasks = 0;
  for (int64_t i = 0; i < batch.count; ++i) {
    const Gemm g = batch.part(batch.context, i);
    if (g.k == 0)
      clear_output(g, c_type);
    else
      tasks += cut.tasks(g);
  }
  auto task_at = [&](int64_t number) {
    int64_t index = 0;
    Gemm g = batch.part(batch.context, 0);
    for (;;) {
      const int64_t own = g.k == 0 ? 0 : cut.tasks(g);
      if (number < own) break;
      number -= own;
      g = batch.part(batch.context, ++index);
    }
    const int64_t pieces = cut.pieces(g), range = number / (cut.groups * pieces);
    const int64_t group = number / pieces % cut.groups, piece = number % pieces;
    const int64_t begin = bound(g.m, cut.ranges(g), range);
    const int64_t rows_here = bound(g.m, cut.ranges(g), range + 1) - begin;
    const int64_t n0 = group * cut.panel_cols;
    return Task{g,
                begin + bound(rows_here, pieces, piece),
                begin + bound(rows_here, pieces, piece + 1),
                n0,
                std::min(g.n, n0 + cut.panel_cols),
                index * cut.groups + group,
                piece,
                pieces};
  };
  pool.run(tasks, [&](int64_t number, int worker) {
    float* base = reinterpret_cast<float*>(aligned) + worker * words;
    const Scratch scratch{base, base + panel_words(), base + panel_words() + a_words(),
                          note(worker)};
    const Task task = task_at(number);
    const bool mine = number >= pool.share(tasks, worker);  // else it was another's last
    const int64_t own = mine ? pool.share(tasks, worker + 1) : 0;
    const int64_t after = number + task.pieces - task.piece;
    const Task next = number + 1 < own ? task_at(number + 1) : task;
    const Task other = after < own ? task_at(after) : task;
    run_task(form, task, number + 1 < own ? &next : nullptr, after < own ? &other : nullptr,
             scratch);
  });
}

void run_gemm(const Gemm& gemm, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool) {
  run_gemm({1, &same_gemm, &gemm}, operands, c_type, workspace, workspace_bytes, pool);
}

}  // namespace moetrain::cpu
