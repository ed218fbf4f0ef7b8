// What the driver of products is made of: how a batch is cut into tasks, tasks into blocks of the
// contraction, and what packs and announces the operands of a block. Only for gemm*.cc.
#pragma once

#include <algorithm>
#include <utility>

#include "runtime/device/cpu/kernels/epilogue.h"
#include "runtime/device/cpu/kernels/gemm.h"
#include "runtime/device/cpu/kernels/micro.h"
#include "runtime/device/cpu/kernels/unpacked.h"

namespace moetrain::cpu::products {

/// Words of k in one packed block: with 64 columns half of a 1 MB second-level cache.
constexpr int64_t kBlock = 2048;
/// The same when A is packed: fewer, so that several panels share one packed A tile.
constexpr int64_t kBlockPackedA = 256;
/// Panels of a task when A is packed.
constexpr int64_t kPanelsPackedA = kBlock / kBlockPackedA;
/// Rows of A packed at once: whole cache lines of a transposed A, read while they are near.
constexpr int64_t kPackRows = 8 * kTileRows;
/// Rows of the float strip that holds C between blocks of k when C is not float or not stored.
constexpr int64_t kStripRows = 512;
/// Members that meet in one block of k.
constexpr int kMaxSegments = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline const void* element(const void* base, DType type, int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(size_of(type));
}

/// How the products of a batch are walked through; the same for all parts up to m.
struct Form {
  const MicroSet* set;
  const UnpackedSet* unpacked;  ///< null: there is none
  const EpilogueSet* finish;
  bool pack_a;
  int64_t sides;    ///< B's whose tiles are computed together: gate and up, or one
  int64_t width;    ///< columns of a tile
  int64_t block;    ///< words of k per block
  int64_t reserve;  ///< words of k set aside for a panel: as many as a block has, at most `block`
  int64_t panels;   ///< column panels of each side per task
  bool strip;       ///< C cannot be added to where it goes and k has several blocks
  DType operands, c_type;
};
Form form_of(const GemmBatch& batch, DType operands, DType c_type);

/// One task: rows [m0, m1) and columns [n0, n1) of a part. Where members are joined by rows, its
/// rows count whole tiles of each.
struct Task {
  int64_t part, member;  ///< member: of the columns
  int64_t m0, m1, n0, n1;
  int64_t panel;          ///< numbers its columns; consecutive tasks may share them
  int64_t piece, pieces;  ///< which of the tasks that share them, and of how many
};

/// What a worker remembers from task to task, on a cache line of its own.
struct alignas(64) Note {
  int64_t panel = -1;                        ///< the panel that it holds packed
  int64_t copied_part = -1, copied_row = 0;  ///< the rows of A that it holds copied
  int64_t part = 0, before = 0;              ///< a part and the tasks before it
};

/// The buffers of one worker.
struct Scratch {
  float *panels, *a, *strip;
  Note* note;
  struct Blocks* blocks;
};

/// All tasks of a batch. They are numbered by parts, ranges of rows, columns and pieces, so that a
/// worker's share of them is whole ranges of rows: it reads rows it wrote itself in the operation
/// before.
class Tasks {
 public:
  Tasks(const Form& form, const GemmBatch& batch, int threads);
  int64_t count() const { return count_; }
  /// Quick for ascending numbers.
  Task at(int64_t number, Note& note) const;

 private:
  int64_t rows(const Gemm& first) const { return stacked_ > 0 ? stacked_ : first.m; }
  int64_t ranges(int64_t rows) const { return ceil_div(rows, range_rows_); }
  int64_t pieces(int64_t rows) const { return ceil_div(ceil_div(rows, ranges(rows)), piece_rows_); }
  int64_t tasks_of(const Gemm& first) const;
  int64_t groups_of(int64_t n) const { return ceil_div(ceil_div(n, width_), per_task_); }
  /// Columns of a task of a member with n columns.
  int64_t columns_of(int64_t n) const {
    return ceil_div(ceil_div(n, width_), groups_of(n)) * width_;
  }

  const GemmBatch& batch_;
  int64_t width_, per_task_, groups_ = 0, stacked_ = 0;
  int64_t range_rows_ = 1, piece_rows_ = 1;
  int64_t count_ = 0;
};

/// One member's (or every side's) share of a block of k.
struct Segment {
  Gemm g[2];  ///< by side
  int64_t p0, k, words;
  int64_t at;      ///< words before it in the block's panels
  int64_t a_at;    ///< words before it in the packed rows of A
  int64_t pitch;   ///< words from one packed tile of A to the next
  int64_t rs, cs;  ///< strides of a tile of A
};

/// Consecutive words of the contraction, of one member or of several short ones.
struct Block {
  Segment segments[kMaxSegments];
  int count = 0;
  int64_t words = 0;
  bool first = true, last = false;
  int64_t next_member = 0, next_p0 = 0;

  void begin_anew() { next_member = next_p0 = 0; }
};
/// The block behind `block` (a new one, or one that begins anew: the first).
void next_block(const Form& f, const GemmBatch& batch, const Task& t, Block& block);

/// The blocks a worker has at hand: making them anew for every small task would take too long.
struct alignas(64) Blocks {
  Block now, later;
};

/// Rows [m0, m1) of the C they belong to: a task's, or one member's share of them.
struct Rows {
  int64_t m0 = 0, m1 = 0;
  Gemm member;  ///< where members are joined by rows: A and C are its
  int64_t next_member = 0, begin = 0;
};
/// The rows behind `rows` (new ones: the first); false when there are none.
bool next_rows(const GemmBatch& batch, const Task& t, Rows& rows);

/// Packs rows [i0, i0 + rows) of A of a segment as words, tile after tile.
void pack_a(const Form& f, const Segment& s, int64_t i0, int64_t rows, float* out);
/// Columns [j, j + cols) of B, k in [p0, p0 + k), as one panel of words, rows `width` apart.
void pack_panel(const MicroSet& set, const Gemm& g, DType operands, int64_t p0, int64_t k,
                int64_t j, int64_t cols, float* panel, int64_t width);

/// Asks for the cache lines of operands a few at a time, while tiles of the block before run:
/// packing them later then waits for no memory.
class Ahead {
 public:
  /// Rows [begin, end) of `from`, `bytes` bytes of each, `pitch` bytes apart.
  void add(const void* from, int64_t pitch, RowSource rows, int64_t begin, int64_t end,
           int64_t bytes);
  /// What pack_panel will read for a block, or the `piece`th of `pieces` of it.
  void add_b(const Form& f, const Task& t, const Block& block, int64_t piece, int64_t pieces);
  /// What pack_a will read of a transposed A, k in [p0, p0 + k), from row i on.
  void add_a(const Form& f, const Gemm& g, int64_t p0, int64_t k, int64_t i, int64_t end);
  /// Forgets all that was added.
  void clear() { count_ = at_ = 0, left_ = lines_ = per_turn_ = 0; }
  /// To be asked for over about `turns` turns.
  void begin(int64_t turns);
  void turn() {
    for (int64_t i = per_turn_; i > 0 && left_ > 0; --i) {
      __builtin_prefetch(reinterpret_cast<const void*>(line_), 0, 2);
      line_ += 64;
      if (line_ >= line_end_) next_row();
    }
  }

 private:
  static constexpr int64_t kMostLines = 400;
  struct Region {
    const std::byte* base;
    RowSource rows;
    int64_t pitch, next, end, bytes;
  };
  void begin_region();
  void next_row() {
    if (--left_ == 0 || regions_[at_].rows.slots) return begin_region();
    row_ += pitch_;
    line_ = row_ & ~uintptr_t{63}, line_end_ = row_ + bytes_;
  }

  Region regions_[2 * kMaxSegments];
  int count_ = 0, at_ = 0;
  uintptr_t row_ = 0, line_ = 0, line_end_ = 0;
  int64_t pitch_ = 0, bytes_ = 0;
  int64_t left_ = 0;  ///< rows of the region that is being asked for
  int64_t per_turn_ = 0, lines_ = 0;
};

/// Runs task `number`; `end`: where the tasks end that this worker gets next.
void run_task(const Form& f, const GemmBatch& batch, const Tasks& tasks, int64_t number,
              int64_t end, const Scratch& scratch);

}  // namespace moetrain::cpu::products
