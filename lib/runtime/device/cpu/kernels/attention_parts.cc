// Packing of keys, values and queries, and what the queries of a block see.
#include "runtime/device/cpu/kernels/attention_parts.h"

#include <algorithm>

namespace moetrain::cpu {

AttentionSizes attention_sizes(const Attrs& attrs, const Shape& q, const Shape& kv,
                               const Shape& kr) {
  const int64_t n = attrs.integer("nope");
  return {q[0], q[1], kv[1], q[2], n, kr[2], kv[3] - n};
}

void find_key_ranges(const AttentionSizes& d, const int32_t* q_pos, const int32_t* k_pos,
                     const int32_t* q_start, KeyRange* ranges) {
  for (int64_t b = 0; b < d.b; ++b) {
    const int32_t *first = k_pos + b * d.z, *last = first + d.z;
    for (int64_t i = b * d.s; i < (b + 1) * d.s; ++i) {
      const int32_t begin = static_cast<int32_t>(std::lower_bound(first, last, q_start[i]) - first);
      const int32_t end = static_cast<int32_t>(std::upper_bound(first, last, q_pos[i]) - first);
      ranges[i] = {begin, std::max(begin, end)};
    }
  }
}

BlockRanges::BlockRanges(const KeyRange* ranges, int64_t count, const MicroSet& set)
    : lanes(set.lanes), vectors(ceil_div(count, set.tile_cols()) * set.vectors), queries(count) {
  for (int64_t i = 0; i < vectors * lanes; ++i) {
    begin[i] = i < count ? ranges[i].begin : 0;
    end[i] = i < count ? ranges[i].end : 0;
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const KeyRange any = seen_by(v * lanes, lanes);
    LaneRange r{any.begin, any.end, any.begin, any.end};
    for (int64_t i = v * lanes; i < (v + 1) * lanes; ++i) {
      // A query with a single key is a case of its own: never among vectors that see all.
      const bool single = end[i] - begin[i] == 1;
      r.common_begin = single ? r.end : std::max(r.common_begin, begin[i]);
      r.common_end = std::min(r.common_end, end[i]);
    }
    of_vector[v] = r;
  }
  all = seen_by(0, count);
}

KeyRange BlockRanges::vectors_seeing(int64_t from, int64_t to, int64_t z, int64_t keys) const {
  auto sees = [&](int64_t v) { return of_vector[v].begin < z + keys && of_vector[v].end > z; };
  while (from < to && !sees(from)) ++from;
  while (from < to && !sees(to - 1)) --to;
  return {static_cast<int32_t>(from), static_cast<int32_t>(to)};
}

KeyRange BlockRanges::seen_by(int64_t i, int64_t rows) const {
  KeyRange u{0, 0};
  for (const int64_t last = i + rows; i < last; ++i) {
    if (begin[i] >= end[i]) continue;
    if (u.begin >= u.end)
      u = {begin[i], end[i]};
    else
      u = {std::min(u.begin, begin[i]), std::max(u.end, end[i])};
  }
  return u;
}

const MicroSet& attention_set(DType dtype, const AttentionSizes& d) {
  const bool whole_pairs = d.n % 2 == 0 && d.r % 2 == 0 && d.v % 2 == 0;
  return micro_set(dtype, whole_pairs);
}

HeadOperands head_operands(const AttentionSizes& d, const Tensor& kv, const Tensor& kr,
                           const MicroSet& set, int64_t batch, int64_t head) {
  HeadOperands o{d, kv.dtype, &set, nullptr, nullptr};
  o.kv = o.at(kv.as<const std::byte>(), (batch * d.z * d.h + head) * (d.n + d.v));
  o.kr = o.at(kr.as<const std::byte>(), batch * d.z * d.r);
  return o;
}

void HeadOperands::announce(RowsAhead& ahead, int64_t s0, int64_t m) const {
  // A causal block's work grows with its place.
  auto until = [&](int64_t s) { return d.z * s / d.s * s / d.s; };
  const int64_t first = until(s0), size = static_cast<int64_t>(size_of(dtype));
  ahead.add(at(kv, first * kv_pitch()), kv_pitch() * size, until(s0 + m) - first,
            (d.n + d.v) * size);
}

void HeadOperands::join_keys(float* out) const {
  const int64_t size = static_cast<int64_t>(size_of(dtype)), words = d.width() / set->pair;
  if (set->convert) {
    set->pack.rows(kv, kv_pitch(), d.z, d.n, d.n, out, words);
    set->pack.rows(kr, d.r, d.z, d.r, d.r, out + d.n, words);
    return;
  }
  const AttentionRows& rows = attention_rows();
  rows.copy(kv, kv_pitch() * size, d.z, d.n / set->pair, out, words);
  rows.copy(kr, d.r * size, d.z, d.r / set->pair, out + d.n / set->pair, words);
}

RowsOperand HeadOperands::value_rows(float* out) const {
  if (!set->convert) return {reinterpret_cast<const float*>(at(kv, d.n)), kv_pitch() / set->pair};
  set->pack.rows(at(kv, d.n), kv_pitch(), d.z, d.v, d.v, out, d.v);
  return {out, d.v};
}

void HeadOperands::pack_keys(float* out) const {
  const int64_t cols = panel_cols(*set, d.width()), words = ceil_div(d.z, set->pair);
  for (int64_t c = 0; c < d.width(); c += cols, out += words * cols) {
    const int64_t end = std::min(c + cols, d.width());
    const int64_t own_end = std::clamp(d.n, c, end);
    // A panel may begin in the own part and end in the shared one.
    if (own_end > c) {
      set->pack.rows(at(kv, c), kv_pitch(), d.z, own_end - c, own_end == end ? cols : own_end - c,
                     out, cols);
    }
    if (end > own_end) {
      set->pack.rows(at(kr, own_end - d.n), d.r, d.z, end - own_end, cols - (own_end - c),
                     out + (own_end - c), cols);
    }
  }
}

void HeadOperands::pack_values(float* out) const {
  pack_row_panels(*set, dtype, at(kv, d.n), kv_pitch(), d.z, d.v, out);
}

void pack_columns(const MicroSet& set, DType dtype, const std::byte* src, int64_t pitch,
                  int64_t rows, int64_t width, float* out) {
  const int64_t cols = set.tile_cols(), size = static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < rows; i += cols, out += width / set.pair * cols) {
    set.pack.transposed(src + i * pitch * size, pitch, width, std::min(cols, rows - i), cols, out,
                        cols);
  }
}

void pack_row_panels(const MicroSet& set, DType dtype, const std::byte* src, int64_t pitch,
                     int64_t rows, int64_t width, float* out) {
  const int64_t cols = panel_cols(set, width), size = static_cast<int64_t>(size_of(dtype));
  for (int64_t c = 0; c < width; c += cols, out += ceil_div(rows, set.pair) * cols) {
    const int64_t n = std::min(cols, width - c);
    set.pack.rows(src + c * size, pitch, rows, n, ceil_div(n, set.lanes) * set.lanes, out, cols);
  }
}

}  // namespace moetrain::cpu
