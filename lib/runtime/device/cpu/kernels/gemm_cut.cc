// Cuts a batch of products into tasks of column panels and row ranges, and a task into blocks of
// the contraction and rows of one C.
#include "runtime/device/cpu/kernels/gemm_parts.h"

namespace moetrain::cpu::products {
namespace {

/// Fewest rows worth packing panels again for.
constexpr int64_t kFewRows = 96;
/// Rows of a task, where the next one can go on with the same panel: few, so that the last ones of
/// two workers end at about the same time.
constexpr int64_t kPieceRows = 256;

int64_t whole_tiles(int64_t rows) { return ceil_div(rows, kTileRows) * kTileRows; }

bool needs_packed_a(const MicroSet& set, const GemmBatch& batch) {
  if (set.convert || batch.joined == Joined::kRows) return true;
  if (set.pair == 1) return false;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Gemm g = batch.at(0, i);
    if (g.k % 2 != 0 || g.lda % 2 != 0) return true;
  }
  return false;
}

/// Even parts of whole tiles.
int64_t bound(int64_t rows, int64_t parts, int64_t index) {
  return std::min(rows, ceil_div(rows, kTileRows) * index / parts * kTileRows);
}

}  // namespace

Form form_of(const GemmBatch& batch, DType operands, DType c_type) {
  Form f;
  f.set = &micro_set(operands);
  f.unpacked = unpacked_set(operands);
  f.finish = &epilogue_set(c_type);
  f.pack_a = needs_packed_a(*f.set, batch);
  f.sides = batch.epilogue == Epilogue::kSwiglu ? 2 : 1;
  f.width = f.set->tile_cols();
  f.block = f.reserve = f.pack_a ? kBlockPackedA : kBlock;
  f.panels = f.pack_a ? kPanelsPackedA / f.sides : 1;
  if (!f.pack_a && (f.sides == 2 || batch.epilogue != Epilogue::kNone)) {
    // An epilogue reads and writes several arrays: wide pieces of their rows, as many panels as a
    // long one takes room. Blocks are those of a product by itself.
    const int64_t words = ceil_div(batch.at(0, 0).k, f.set->pair);
    if (f.sides == 2 && words > f.block / 2) {
      f.width = f.set->vectors / 2 * f.set->lanes;
    } else {
      f.panels = std::clamp<int64_t>(kBlock / std::max<int64_t>(1, f.sides * words), 1,
                                     kPanelsPackedA / f.sides);
      if (f.panels > 1 || f.sides == 2) f.reserve = std::min(words, f.block);
    }
  }
  f.operands = operands;
  f.c_type = c_type;
  Block block;
  next_block(f, batch, {}, block);
  f.strip = !block.last && (c_type != DType::kF32 || batch.epilogue != Epilogue::kNone);
  return f;
}

Tasks::Tasks(const Form& f, const GemmBatch& batch, int threads) : batch_(batch), width_(f.width) {
  int64_t largest_rows = 1, panels = 1;
  double work = 0, largest = 1;
  if (batch.joined == Joined::kRows) {
    for (int64_t i = 0; i < batch.members; ++i) stacked_ += whole_tiles(batch.at(0, i).m);
  }
  for (int64_t i = 0; i < batch.count; ++i) {
    const Gemm g = batch.at(i, 0);
    const double own = static_cast<double>(rows(g)) * static_cast<double>(g.k);
    largest_rows = std::max(largest_rows, rows(g));
    work += own;
    largest = std::max(largest, own);
  }
  // How many parts of the largest one's size the batch amounts to.
  const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(work / largest));
  const bool columns = batch.joined == Joined::kColumns && f.sides == 1;
  const int64_t beside = columns ? batch.members : 1;
  for (int64_t i = 0; i < beside; ++i)
    panels = std::max(panels, ceil_div(batch.at(0, i).n, width_));
  per_task_ = std::min(f.panels, panels);
  auto groups = [&] {
    groups_ = 0;
    for (int64_t i = 0; i < beside; ++i) groups_ += groups_of(batch.at(0, i).n);
    return std::max<int64_t>(1, groups_);
  };
  int64_t ranges = 1;
  if (f.pack_a) {
    // Shorter ranges of rows cost packings of B, fewer panels packings of A.
    const int64_t wanted = threads == 1 ? 1 : 2 * threads;
    const int64_t most = std::max<int64_t>(1, largest_rows / kFewRows);
    ranges = std::clamp<int64_t>(ceil_div(wanted, parts * groups()), 1, most);
    while (per_task_ > 4 && parts * groups() * ranges < wanted) per_task_ = ceil_div(per_task_, 2);
    while (per_task_ > 1 && parts * groups() * ranges < threads) --per_task_;
  } else {
    const int64_t most = std::max<int64_t>(1, largest_rows / (2 * kFewRows));
    ranges = std::clamp<int64_t>(ceil_div(threads, parts), 1, most);
    while (per_task_ > 1 && parts * groups() * ranges < threads) --per_task_;
  }
  groups();
  range_rows_ = piece_rows_ = ceil_div(largest_rows, ranges);
  Block block;
  next_block(f, batch, {}, block);
  if (threads > 1 && !f.pack_a && block.last) piece_rows_ = std::min(range_rows_, kPieceRows);
  if (f.strip) piece_rows_ = std::min(piece_rows_, kStripRows - 4 * kTileRows);
  for (int64_t i = 0; i < batch.count; ++i) count_ += tasks_of(batch.at(i, 0));
}

int64_t Tasks::tasks_of(const Gemm& first) const {
  const int64_t m = rows(first);
  return m <= 0 || first.k == 0 ? 0 : ranges(m) * groups_ * pieces(m);
}

Task Tasks::at(int64_t number, Note& note) const {
  if (number < note.before) note.part = note.before = 0;
  Gemm g = batch_.at(note.part, 0);
  for (int64_t own; number - note.before >= (own = tasks_of(g)); g = batch_.at(note.part, 0)) {
    note.before += own;
    ++note.part;
  }
  number -= note.before;
  const int64_t m = rows(g), count = pieces(m), range = number / (groups_ * count);
  const int64_t group = number / count % groups_, piece = number % count;
  const int64_t begin = bound(m, ranges(m), range), own = bound(m, ranges(m), range + 1) - begin;
  int64_t member = 0, left = group;
  while (left >= groups_of(g.n)) {
    left -= groups_of(g.n);
    g = batch_.at(note.part, ++member);
  }
  Task t;
  t.part = note.part, t.member = member;
  t.m0 = begin + bound(own, count, piece), t.m1 = begin + bound(own, count, piece + 1);
  t.n0 = left * columns_of(g.n), t.n1 = std::min(g.n, t.n0 + columns_of(g.n));
  t.panel = note.part * groups_ + group;
  t.piece = piece, t.pieces = count;
  return t;
}

void next_block(const Form& f, const GemmBatch& batch, const Task& t, Block& block) {
  const int64_t pair = f.set->pair;
  const bool deep = batch.joined == Joined::kDepth;
  const int64_t members = deep ? batch.members : 1;
  block.first = block.next_member == 0 && block.next_p0 == 0;
  block.count = 0, block.words = 0;
  int64_t a_at = 0;
  while (block.next_member < members && block.count < kMaxSegments) {
    Segment& s = block.segments[block.count];
    s.g[0] = batch.at(t.part, deep ? block.next_member : t.member);
    const int64_t left = s.g[0].k - block.next_p0;
    s.k = std::min(left, (f.block - block.words) * pair);
    if (block.count > 0 && s.k < left) break;
    if (f.sides == 2) s.g[1] = batch.at(t.part, 1);
    s.p0 = block.next_p0;
    s.words = ceil_div(s.k, pair);
    s.at = block.words, s.a_at = a_at;
    const bool tiles = batch.joined == Joined::kRows;  // of a transposed A
    s.pitch = tiles ? tile_pitch(s.words) : kTileRows * s.words;
    s.rs = tiles ? 1 : f.pack_a ? s.words : s.g[0].lda / pair;
    s.cs = tiles ? kTileRows : 1;
    block.words += s.words, a_at += s.pitch * (kPackRows / kTileRows);
    ++block.count;
    if (s.k < left) {
      block.next_p0 += s.k;
      break;
    }
    ++block.next_member, block.next_p0 = 0;
  }
  block.last = block.next_member == members;
}

bool next_rows(const GemmBatch& batch, const Task& t, Rows& rows) {
  if (batch.joined != Joined::kRows) {
    rows.m0 = t.m0, rows.m1 = t.m1;
    return rows.next_member++ == 0;
  }
  while (rows.next_member < batch.members) {
    rows.member = batch.at(t.part, rows.next_member++);
    const int64_t begin = rows.begin;
    rows.begin += whole_tiles(rows.member.m);
    rows.m0 = std::max<int64_t>(t.m0 - begin, 0);
    rows.m1 = std::min(t.m1 - begin, rows.member.m);
    if (rows.m0 < rows.m1) return true;
  }
  return false;
}

}  // namespace moetrain::cpu::products
