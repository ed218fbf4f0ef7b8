// What forward and backward attention share: sizes, visible key ranges, packed keys and values.
#pragma once

#include <span>

#include "runtime/device/cpu/kernels/attention_rows.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/micro.h"

namespace moetrain::cpu {

/// Sizes: batch, queries, keys, heads; widths of the own key part, the shared part, the value.
struct AttentionSizes {
  int64_t b, s, z, h, n, r, v;
  int64_t width() const { return n + r; }
  /// Rounded up to the widest panel.
  int64_t z_pad() const { return ceil_div(z, kMaxTileCols) * kMaxTileCols; }
  int64_t width_pad() const { return ceil_div(n + r, kMaxTileCols) * kMaxTileCols; }
  int64_t v_pad() const { return ceil_div(v, kMaxTileCols) * kMaxTileCols; }
};

AttentionSizes attention_sizes(const Attrs& attrs, const Shape& q, const Shape& kv,
                               const Shape& kr);

/// Keys a query sees: [begin, end) along z. Positions ascend, so they are always one run.
struct KeyRange {
  int32_t begin, end;
};

/// Ranges of all queries, [b, s].
void find_key_ranges(const AttentionSizes& d, const int32_t* q_pos, const int32_t* k_pos,
                     const int32_t* q_start, KeyRange* ranges);

/// The union of `count` ranges (empty ones left out).
KeyRange union_of(const KeyRange* ranges, int64_t count);

/// The micro-kernels attention uses for `dtype`: the dot set only if all widths are whole pairs.
const MicroSet& attention_set(DType dtype, const AttentionSizes& d);

/// The keys and values of one (batch, head).
struct HeadOperands {
  AttentionSizes d;
  DType dtype;
  const MicroSet* set;
  const std::byte *kv, *kr;  ///< first row of this head: rows h * (n + v) and r elements apart

  int64_t kv_pitch() const { return d.h * (d.n + d.v); }
  const std::byte* at(const std::byte* base, int64_t element) const {
    return base + element * static_cast<int64_t>(size_of(dtype));
  }
  /// Keys transposed: panels of tile_cols() keys, each [width words][tile_cols()].
  void pack_keys_transposed(float* out) const;
  /// Keys as rows: panels of tile_cols() columns of the width, each [z words][tile_cols()].
  void pack_keys(float* out) const;
  /// Values as rows, panels like pack_keys.
  void pack_values(float* out) const;
  /// Values transposed, panels like pack_keys_transposed.
  void pack_values_transposed(float* out) const;
};

HeadOperands head_operands(const AttentionSizes& d, const Tensor& kv, const Tensor& kr,
                           const MicroSet& set, int64_t batch, int64_t head);

/// Rows to multiply with: A of a micro-kernel.
struct RowsOperand {
  const void* data;
  int64_t rs;  ///< words between rows
};

/// `rows` rows of `k` elements, `pitch` elements apart: in place, or converted into `scratch`.
RowsOperand rows_operand(const MicroSet& set, DType dtype, const void* rows_begin, int64_t pitch,
                         int64_t rows, int64_t k, float* scratch);

/// C[rows, n] (+)= A[rows, k] B over panels: B has panels of tile_cols() columns, `panel_words`
/// words apart, already advanced to the first word of k. C rows `ldc` floats apart, padded to whole
/// vectors.
void multiply_panels(const MicroSet& set, int64_t rows, int64_t words, const void* a, int64_t rs,
                     int64_t cs, const float* b, int64_t panel_words, int64_t n, float* c,
                     int64_t ldc, bool accumulate);

}  // namespace moetrain::cpu
