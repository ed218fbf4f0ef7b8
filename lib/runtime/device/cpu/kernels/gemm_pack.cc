// Packs the operands of a block as words, and asks for the memory of the next one beforehand.
#include <cstring>

#include "runtime/device/cpu/kernels/gemm_parts.h"

namespace moetrain::cpu::products {

void pack_a(const Form& f, const Segment& s, int64_t i0, int64_t rows, float* out) {
  const Gemm& g = s.g[0];
  out += s.a_at;
  if (s.cs != 1) {
    f.set->pack.tiles(element(g.a, f.operands, s.p0 * g.lda + i0), g.lda, s.k, rows, out, s.pitch);
    return;
  }
  for (int64_t i = 0; i < rows; ++i, out += s.words) {
    const void* from = element(g.a, f.operands, g.a_rows(i0 + i) * g.lda + s.p0);
    if (f.set->pair == 1) {
      f.set->pack.rows(from, 0, 1, s.k, s.k, out, s.k);
      continue;
    }
    uint16_t* to = reinterpret_cast<uint16_t*>(out);
    std::memcpy(to, from, static_cast<size_t>(s.k) * 2);
    if (s.k % 2) to[s.k] = 0;
  }
}

void pack_panel(const MicroSet& set, const Gemm& g, DType operands, int64_t p0, int64_t k,
                int64_t j, int64_t cols, float* panel, int64_t width) {
  const int64_t pad = ceil_div(cols, set.lanes) * set.lanes;
  if (g.b_transposed)
    return set.pack.transposed(element(g.b, operands, j * g.ldb + p0), g.ldb, k, cols, pad, panel,
                               width);
  if (!g.b_rows.slots)
    return set.pack.rows(element(g.b, operands, p0 * g.ldb + j), g.ldb, k, cols, pad, panel, width);
  // Any two rows are some distance apart.
  for (int64_t p = p0; p < p0 + k; p += set.pair, panel += width) {
    const int64_t n = std::min<int64_t>(set.pair, p0 + k - p), row = g.b_rows(p);
    const int64_t distance = n > 1 ? (g.b_rows(p + 1) - row) * g.ldb : 0;
    set.pack.rows(element(g.b, operands, row * g.ldb + j), distance, n, cols, pad, panel, width);
  }
}

void Ahead::add(const void* from, int64_t pitch, RowSource rows, int64_t begin, int64_t end,
                int64_t bytes) {
  if (begin >= end || bytes <= 0) return;
  regions_[count_++] = {static_cast<const std::byte*>(from), rows, pitch, begin, end, bytes};
  lines_ += (end - begin) * (ceil_div(bytes, 64) + 1);
}

void Ahead::add_b(const Form& f, const Task& t, const Block& block, int64_t piece, int64_t pieces) {
  const int64_t size = static_cast<int64_t>(size_of(f.operands)), n = t.n1 - t.n0;
  for (int i = 0; i < block.count; ++i) {
    const Segment& s = block.segments[i];
    for (int64_t side = 0; side < f.sides; ++side) {
      const Gemm& g = s.g[side];
      if (g.packed_b) continue;
      const int64_t rows = g.b_transposed ? n : s.k;
      const int64_t begin = rows * piece / pieces, end = rows * (piece + 1) / pieces;
      if (g.b_transposed)
        add(element(g.b, f.operands, t.n0 * g.ldb + s.p0), g.ldb * size, {}, begin, end,
            s.k * size);
      else
        add(element(g.b, f.operands, t.n0), g.ldb * size, g.b_rows, s.p0 + begin, s.p0 + end,
            n * size);
    }
  }
}

void Ahead::add_a(const Form& f, const Gemm& g, int64_t p0, int64_t k, int64_t i, int64_t end) {
  const int64_t size = static_cast<int64_t>(size_of(f.operands));
  add(element(g.a, f.operands, i), g.lda * size, {}, p0, p0 + k,
      std::min(kPackRows, end - i) * size);
}

/// The rest of the region in turn, or the next one; of rows that stand anywhere one by one.
void Ahead::begin_region() {
  left_ = 0;
  while (at_ < count_ && regions_[at_].next == regions_[at_].end) ++at_;
  if (at_ == count_) return;
  Region& r = regions_[at_];
  row_ = reinterpret_cast<uintptr_t>(r.base + r.rows(r.next) * r.pitch);
  pitch_ = r.pitch, bytes_ = r.bytes;
  left_ = r.rows.slots ? 1 : r.end - r.next;
  r.next += left_;
  line_ = row_ & ~uintptr_t{63}, line_end_ = row_ + static_cast<uintptr_t>(bytes_);
}

void Ahead::begin(int64_t turns) {
  at_ = 0;
  if (lines_ == 0) return;
  turns = std::max<int64_t>(1, turns);
  // Many at once would only wait for one another: where turns are few, asking does not pay.
  per_turn_ = lines_ > kMostLines * turns ? 0 : ceil_div(lines_, turns);
  if (per_turn_ > 0) begin_region();
}

}  // namespace moetrain::cpu::products
