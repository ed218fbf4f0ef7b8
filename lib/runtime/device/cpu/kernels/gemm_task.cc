// Runs one task: packs its panels block by block and computes its tiles, or reads B where it
// stands.
#include <cstring>

#include "runtime/device/cpu/kernels/gemm_parts.h"

namespace moetrain::cpu::products {
namespace {

/// Rows up to which B is read where it stands: packing a transposed B costs more.
constexpr int64_t kMostRows = 16, kMostRowsTransposed = 48;
static_assert(kMostRowsTransposed * kUnpackedPitch <= kBlock * kMaxTileCols);

/// Floats of a row of tiles with an epilogue: those of all panels of a task, and a vector of padding.
constexpr int64_t kMaxRowWords = kMaxTileCols * kPanelsPackedA + 16;

/// Rows of the next tile when `left` are left: not a full tile and then a sliver, which would be
/// bound by loads, but two halves.
int64_t tile_rows(int64_t left) {
  if (left <= kTileRows) return left;
  return left < 2 * kTileRows ? ceil_div(left, 2) : kTileRows;
}

/// An element of a result that may not be wanted.
void* place(void* base, DType type, int64_t index) {
  return base ? static_cast<std::byte*>(base) + index * static_cast<int64_t>(size_of(type))
              : nullptr;
}

/// Asks for a tile of rows of `bytes` bytes, `pitch` bytes apart. Always inlined: GCC takes a
/// function that only prefetches for one without effects and drops its calls.
[[gnu::always_inline]] inline void announce(const void* tile, int64_t rows, int64_t pitch,
                                            int64_t bytes) {
  const auto* row = static_cast<const std::byte*>(tile);
  for (int64_t r = 0; r < rows; ++r, row += pitch) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  }
}

/// One task on its way.
class Run {
 public:
  Run(const Form& f, const GemmBatch& batch, const Task& task, const Scratch& scratch)
      : f_(f),
        batch_(batch),
        t_(task),
        scratch_(scratch),
        c_size_(static_cast<int64_t>(size_of(f.c_type))),
        full_(static_cast<int>(f.width / f.set->lanes)),
        panels_(ceil_div(task.n1 - task.n0, f.width)),
        whole_rows_(task.n1 - task.n0 == batch.at(task.part, 0).ldc) {}

  void in_place(const Block& block);
  bool reads_in_place(const Block& block) const;
  /// `next`: the task this worker probably gets then, `other`: the first one after it with other
  /// columns; or null.
  void packed(const Task* next, const Task* other);

 private:
  /// The panels of a block: the first one, words to the next, words from row to row.
  struct Panels {
    const float* first;
    int64_t step, ldb;
  };
  bool plain() const { return f_.c_type == DType::kF32 && batch_.epilogue == Epilogue::kNone; }
  Panels panels_of(const Segment& s, int64_t side) const;
  void pack_panels(const Block& block);
  void announce_a(const Block& block, const Rows& rows, int64_t i, const Block* later,
                  const Task* next);
  void row_of_tiles(const Block& block, const Rows& rows, int64_t i, int64_t count);
  [[gnu::always_inline]] inline void announce_c(const Gemm& g, int64_t i, int64_t rows, int64_t j,
                                                int64_t cols) const;
  void finish(const Block& block, const float* const (&tile)[2], int64_t ld, int64_t rows,
              int64_t cols, int64_t i, int64_t j, bool add) const;

  const Form& f_;
  const GemmBatch& batch_;
  const Task& t_;
  const Scratch& scratch_;
  const int64_t c_size_;
  const int full_;  // vectors of a whole tile
  const int64_t panels_;
  const bool whole_rows_;  // of C
  Panels b_[kMaxSegments][2];
  bool stands_ = false;  // B's rows of floats stand as a panel does, only further apart
  Ahead ahead_a_, ahead_b_;
};

/// Asks for the tile of C that finish() will touch.
void Run::announce_c(const Gemm& g, int64_t i, int64_t rows, int64_t j, int64_t cols) const {
  const int64_t at = (i * g.ldc + j) * c_size_, pitch = g.ldc * c_size_, bytes = cols * c_size_;
  if (g.c) announce(static_cast<std::byte*>(g.c) + at, rows, pitch, bytes);
  if (batch_.epilogue == Epilogue::kNone) return;
  if (g.gate) announce(static_cast<const std::byte*>(g.gate) + at, rows, pitch, bytes);
  if (g.up) announce(static_cast<const std::byte*>(g.up) + at, rows, pitch, bytes);
  if (g.result) announce(static_cast<std::byte*>(g.result) + at, rows, pitch, bytes);
}

/// A tile that was computed aside, rows `ld` apart.
void Run::finish(const Block& block, const float* const (&tile)[2], int64_t ld, int64_t rows,
                 int64_t cols, int64_t i, int64_t j, bool add) const {
  const Gemm& g = block.segments[0].g[0];
  const int64_t at = i * g.ldc + j;
  void *c = place(g.c, f_.c_type, at), *result = place(g.result, f_.c_type, at);
  switch (batch_.epilogue) {
    case Epilogue::kSwiglu:
      return f_.finish->swiglu(tile[0], tile[1], ld, rows, cols, c,
                               place(block.segments[0].g[1].c, f_.c_type, at), result, g.ldc);
    case Epilogue::kSwigluGrad:
      return f_.finish->swiglu_grad(tile[0], ld, rows, cols, element(g.gate, f_.c_type, at),
                                    element(g.up, f_.c_type, at), c, result, g.ldc);
    case Epilogue::kNone:
      break;
  }
  if (f_.c_type == DType::kBF16)
    return f_.set->round(tile[0], ld, rows, cols, static_cast<uint16_t*>(c), g.ldc);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = tile[0] + r * ld;
    float* to = static_cast<float*>(c) + r * g.ldc;
    for (int64_t k = 0; k < cols; ++k) to[k] = add ? to[k] + from[k] : from[k];
  }
}

bool Run::reads_in_place(const Block& block) const {
  const int64_t pair = f_.set->pair, cols = t_.n1 - t_.n0;
  if (!f_.unpacked || f_.pack_a || !block.first || !block.last || block.words > kUnpackedSteps)
    return false;
  for (int n = 0; n < block.count; ++n) {
    const Segment& s = block.segments[n];
    const Gemm& g = s.g[0];
    if (g.packed_b || t_.m1 - t_.m0 > (g.b_transposed ? kMostRowsTransposed : kMostRows))
      return false;
    if (g.b_transposed ? g.ldb % pair != 0 || cols % f_.unpacked->transposed_cols != 0 ||
                             g.k % (f_.unpacked->transposed_steps * pair) != 0
                       : cols % f_.unpacked->plain_cols != 0)
      return false;
  }
  return true;
}

void Run::in_place(const Block& block) {
  const int64_t pair = f_.set->pair, rows = t_.m1 - t_.m0;
  Note& note = *scratch_.note;
  note.panel = -1;
  if (note.copied_part != t_.part || note.copied_row != t_.m0) {
    note.copied_part = t_.part, note.copied_row = t_.m0;
    for (int n = 0; n < block.count; ++n) {
      const Segment& s = block.segments[n];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = s.g[0].a_rows(t_.m0 + i);
        std::memcpy(scratch_.panels + i * kUnpackedPitch + s.at,
                    element(s.g[0].a, f_.operands, row * s.g[0].lda),
                    static_cast<size_t>(s.words) * sizeof(float));
      }
    }
  }
  const bool transposed = block.segments[0].g[0].b_transposed;
  const int64_t width = transposed ? f_.unpacked->transposed_cols : f_.unpacked->plain_cols;
  const int64_t step = ceil_div(rows, ceil_div(rows, kUnpackedRows));
  alignas(64) float edge[2][kUnpackedRows * kMaxTileCols];
  for (int64_t j = t_.n0; j < t_.n1; j += width) {
    for (int64_t i = t_.m0; i < t_.m1; i += step) {
      const int64_t n = std::min(step, t_.m1 - i);
      const UnpackedKernel kernel =
          (transposed ? f_.unpacked->transposed : f_.unpacked->plain)[n - 1];
      for (int64_t side = 0; side < f_.sides; ++side) {
        const Gemm& first = block.segments[0].g[side];
        float* c = plain() ? static_cast<float*>(first.c) + i * first.ldc + j : edge[side];
        const int64_t ldc = plain() ? first.ldc : width;
        for (int k = 0; k < block.count; ++k) {
          const Segment& s = block.segments[k];
          const Gemm& g = s.g[side];
          kernel(s.words, scratch_.panels + (i - t_.m0) * kUnpackedPitch + s.at,
                 element(g.b, f_.operands, transposed ? j * g.ldb : j),
                 transposed ? g.ldb / pair : g.ldb, c, ldc, k > 0 || (plain() && g.accumulate));
        }
      }
      if (!plain()) finish(block, {edge[0], edge[1]}, width, n, width, i, j, false);
    }
  }
}

/// Where the panels of a block stand once pack_panels is done.
Run::Panels Run::panels_of(const Segment& s, int64_t side) const {
  const Gemm& g = s.g[side];
  const int64_t whole = f_.set->tile_cols();
  if (g.packed_b) {
    // Tiles of half the width have one panel to a task.
    const int64_t words = ceil_div(g.k, f_.set->pair);
    return {
        g.packed_b + t_.n0 / whole * whole * words + s.p0 / f_.set->pair * whole + t_.n0 % whole,
        whole * words, whole};
  }
  if (stands_) return {static_cast<const float*>(g.b) + s.p0 * g.ldb + t_.n0, f_.width, g.ldb};
  const int64_t step = f_.reserve * f_.width;
  return {scratch_.panels + side * f_.panels * step + s.at * f_.width, step, f_.width};
}

void Run::pack_panels(const Block& block) {
  Note& note = *scratch_.note;
  note.copied_part = -1;
  stands_ = f_.set->pair == 1 && !f_.set->convert && (t_.n1 - t_.n0) % f_.set->lanes == 0 &&
            t_.m1 - t_.m0 <= kMostRows;
  for (int n = 0; n < block.count; ++n) {
    const Gemm& g = block.segments[n].g[0];
    stands_ = stands_ && !g.packed_b && !g.b_transposed && !g.b_rows.slots;
  }
  const bool whole = block.first && block.last;
  const bool there = stands_ || (whole && note.panel == t_.panel);
  note.panel = whole && !stands_ ? t_.panel : -1;
  for (int n = 0; n < block.count; ++n) {
    const Segment& s = block.segments[n];
    for (int64_t side = 0; side < f_.sides; ++side) {
      b_[n][side] = panels_of(s, side);
      if (there || s.g[side].packed_b) continue;
      float* to = const_cast<float*>(b_[n][side].first);
      for (int64_t j = t_.n0; j < t_.n1; j += f_.width, to += b_[n][side].step)
        pack_panel(*f_.set, s.g[side], f_.operands, s.p0, s.k, j, std::min(f_.width, t_.n1 - j), to,
                   f_.width);
    }
  }
}

/// What pack_a will want of a transposed A after the rows from i on.
void Run::announce_a(const Block& block, const Rows& rows, int64_t i, const Block* later,
                     const Task* next) {
  ahead_a_.clear();
  if (batch_.joined != Joined::kRows) return;  // whole rows: the hardware asks for them
  const Segment& s = block.segments[0];
  Rows r;
  if (i + kPackRows < rows.m1)
    ahead_a_.add_a(f_, rows.member, s.p0, s.k, i + kPackRows, rows.m1);
  else if (next_rows(batch_, t_, r = rows))
    ahead_a_.add_a(f_, r.member, s.p0, s.k, r.m0, r.m1);
  else if (later && next_rows(batch_, t_, r = {}))
    ahead_a_.add_a(f_, r.member, later->segments[0].p0, later->segments[0].k, r.m0, r.m1);
  else if (next && next_rows(batch_, *next, r = {}))
    ahead_a_.add_a(f_, r.member, 0, std::min(f_.block * f_.set->pair, r.member.k), r.m0, r.m1);
  ahead_a_.begin(panels_ * ceil_div(std::min(kPackRows, rows.m1 - i), kTileRows));
}

/// The tiles of rows [i, i + count).
void Run::row_of_tiles(const Block& block, const Rows& rows, int64_t i, int64_t count) {
  const int64_t span = panels_ * f_.width, strip_ld = f_.sides * span + f_.set->lanes;
  const bool gathered = !f_.pack_a && block.segments[0].g[0].a_rows.slots;
  const bool accumulate = block.segments[0].g[0].accumulate || !block.first;
  const MicroKernel(&kernels)[kMaxTileVectors] =
      (gathered ? f_.set->gathered : f_.set->kernel)[count - 1];
  const void* gathered_rows[2 * kTileRows];
  const void* a[kMaxSegments];
  for (int n = 0; n < block.count; ++n) {
    const Segment& s = block.segments[n];
    const Gemm& g = s.g[0];
    a[n] = f_.pack_a ? scratch_.a + s.a_at + (i - rows.m0) % kPackRows / kTileRows * s.pitch
                     : element(g.a, f_.operands, i * g.lda + s.p0);
    if (!gathered) continue;
    for (int64_t r = 0; r < 2 * kTileRows; ++r) {
      const int64_t row = g.a_rows(std::min(i + r, t_.m1 - 1));
      gathered_rows[r] = element(g.a, f_.operands, row * g.lda + s.p0);
    }
    a[n] = gathered_rows;  // rows are gathered for one contraction only
  }
  // Where the task has whole rows, all its tiles come before the epilogue, which then runs along
  // them: the hardware asks for memory that goes on and on. Asking for a tile's share of several
  // arrays, many lines at once, holds the tile up.
  const bool joint = batch_.epilogue != Epilogue::kNone && whole_rows_;
  alignas(64) float edge[kTileRows * kMaxRowWords];
  const int64_t edge_ld = joint ? f_.sides * span + 16 : kMaxTileCols;
  int64_t j = t_.n0;
  for (int64_t panel = 0; panel < panels_; ++panel, j += f_.width) {
    ahead_a_.turn(), ahead_b_.turn();
    const int64_t cols = std::min(f_.width, t_.n1 - j);
    const int vectors = cols == f_.width ? full_ : static_cast<int>(ceil_div(cols, f_.set->lanes));
    const bool straight = plain() && (cols == f_.width || cols % f_.set->lanes == 0);
    const bool finishes = !joint && (f_.strip ? block.last : !straight);
    const float* tile[2] = {};
    int64_t ld = edge_ld;
    for (int64_t side = 0; side < f_.sides; ++side) {
      const Gemm& g = block.segments[0].g[side];
      if (finishes) announce_c(g, i, count, j, cols);
      float* c = edge + (joint ? side * span + panel * f_.width : side * kTileRows * kMaxTileCols);
      bool add = false;
      if (f_.strip) {
        c = scratch_.strip + (i - rows.m0) * strip_ld + side * span + panel * f_.width;
        ld = strip_ld, add = !block.first;
      } else if (straight) {
        c = static_cast<float*>(g.c) + i * g.ldc + j;
        ld = g.ldc, add = accumulate;
      }
      tile[side] = c;
      for (int n = 0; n < block.count; ++n) {
        const Segment& s = block.segments[n];
        const Panels& b = b_[n][side];
        kernels[vectors - 1](s.words, a[n], s.rs, s.cs, b.first + panel * b.step, b.ldb, c, ld,
                             add || n > 0);
      }
    }
    if (finishes) finish(block, tile, ld, count, cols, i, j, accumulate);
  }
  if (!joint || (f_.strip && !block.last)) return;
  const float* first = f_.strip ? scratch_.strip + (i - rows.m0) * strip_ld : edge;
  finish(block, {first, first + span}, f_.strip ? strip_ld : edge_ld, count, t_.n1 - t_.n0, i, t_.n0,
         accumulate);
}

void Run::packed(const Task* next, const Task* other) {
  Block *block = &scratch_.blocks->now, *later = &scratch_.blocks->later;
  for (bool more = true; more; std::swap(block, later)) {
    more = !block->last;
    pack_panels(*block);
    ahead_b_.clear();
    if (more) {
      later->next_member = block->next_member, later->next_p0 = block->next_p0;
      next_block(f_, batch_, t_, *later);
      ahead_b_.add_b(f_, t_, *later, 0, 1);
    } else if (other && !block->segments[0].g[0].packed_b) {
      later->begin_anew();
      next_block(f_, batch_, *other, *later);
      ahead_b_.add_b(f_, *other, *later, t_.piece, t_.pieces);
    }
    ahead_b_.begin(panels_ * ceil_div(t_.m1 - t_.m0, kTileRows));
    for (Rows rows; next_rows(batch_, t_, rows);) {
      if (batch_.joined == Joined::kRows) {
        Gemm& g = block->segments[0].g[0];
        g.a = rows.member.a, g.lda = rows.member.lda, g.c = rows.member.c, g.ldc = rows.member.ldc;
      }
      for (int64_t i = rows.m0, count = 0; i < rows.m1; i += count) {
        count = f_.pack_a ? std::min<int64_t>(kTileRows, rows.m1 - i) : tile_rows(rows.m1 - i);
        if (f_.pack_a && (i - rows.m0) % kPackRows == 0) {
          for (int n = 0; n < block->count; ++n)
            pack_a(f_, block->segments[n], i, std::min(kPackRows, rows.m1 - i), scratch_.a);
          announce_a(*block, rows, i, more ? later : nullptr, next);
        }
        row_of_tiles(*block, rows, i, count);
      }
    }
  }
}

}  // namespace

void run_task(const Form& f, const GemmBatch& batch, const Tasks& tasks, int64_t number,
              int64_t end, const Scratch& scratch) {
  const Task task = tasks.at(number, *scratch.note);
  Block& block = scratch.blocks->now;
  block.begin_anew();
  next_block(f, batch, task, block);
  Run run(f, batch, task, scratch);
  if (run.reads_in_place(block)) return run.in_place(block);
  Note ahead = *scratch.note;
  const int64_t after = number + task.pieces - task.piece;
  const Task next = number + 1 < end ? tasks.at(number + 1, ahead) : task;
  const Task other = after == number + 1 ? next : after < end ? tasks.at(after, ahead) : task;
  run.packed(number + 1 < end ? &next : nullptr, after < end ? &other : nullptr);
}

}  // namespace moetrain::cpu::products
