// Packing of keys and values, and products over their panels.
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

KeyRange union_of(const KeyRange* ranges, int64_t count) {
  KeyRange all{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (ranges[i].begin >= ranges[i].end) continue;
    if (all.begin >= all.end) {
      all = ranges[i];
    } else {
      all = {std::min(all.begin, ranges[i].begin), std::max(all.end, ranges[i].end)};
    }
  }
  return all;
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

void HeadOperands::pack_keys_transposed(float* out) const {
  const int64_t cols = set->tile_cols(), own = d.n / set->pair, words = d.width() / set->pair;
  for (int64_t z = 0; z < d.z; z += cols, out += words * cols) {
    const int64_t keys = std::min(cols, d.z - z);
    set->pack.transposed(at(kv, z * kv_pitch()), kv_pitch(), d.n, keys, cols, out, cols);
    set->pack.transposed(at(kr, z * d.r), d.r, d.r, keys, cols, out + own * cols, cols);
  }
}

void HeadOperands::pack_values_transposed(float* out) const {
  const int64_t cols = set->tile_cols(), words = d.v / set->pair;
  for (int64_t z = 0; z < d.z; z += cols, out += words * cols) {
    set->pack.transposed(at(kv, z * kv_pitch() + d.n), kv_pitch(), d.v, std::min(cols, d.z - z),
                         cols, out, cols);
  }
}

void HeadOperands::pack_keys(float* out) const {
  const int64_t cols = set->tile_cols(), words = ceil_div(d.z, set->pair);
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
  const int64_t cols = set->tile_cols(), words = ceil_div(d.z, set->pair);
  for (int64_t c = 0; c < d.v; c += cols, out += words * cols) {
    set->pack.rows(at(kv, d.n + c), kv_pitch(), d.z, std::min(cols, d.v - c), cols, out, cols);
  }
}

RowsOperand rows_operand(const MicroSet& set, DType dtype, const void* rows_begin, int64_t pitch,
                         int64_t rows, int64_t k, float* scratch) {
  if (!set.convert) return {rows_begin, pitch / set.pair};
  (void)dtype;
  set.pack.rows(rows_begin, pitch, rows, k, k, scratch, k);
  return {scratch, k};
}

void multiply_panels(const MicroSet& set, int64_t rows, int64_t words, const void* a, int64_t rs,
                     int64_t cs, const float* b, int64_t panel_words, int64_t n, float* c,
                     int64_t ldc, bool accumulate) {
  const int64_t width = set.tile_cols();
  for (int64_t j = 0; j < n; j += width, b += panel_words) {
    const int64_t vectors = ceil_div(std::min(width, n - j), set.lanes);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t m = std::min<int64_t>(kTileRows, rows - i);
      set.kernel[m - 1][vectors - 1](words, static_cast<const float*>(a) + i * rs, rs, cs, b, width,
                                     c + i * ldc + j, ldc, accumulate);
    }
  }
}

}  // namespace moetrain::cpu
