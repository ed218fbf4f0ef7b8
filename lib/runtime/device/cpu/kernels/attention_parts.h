// What forward and backward attention share: sizes, visible key ranges, packed operands.
#pragma once

#include <span>

#include "runtime/device/cpu/kernels/attention_rows.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/micro.h"
#include "runtime/device/cpu/kernels/tiles.h"

namespace moetrain::cpu {

/// Sizes: batch, queries, keys, heads; widths of the own key part, the shared part, the value.
struct AttentionSizes {
  int64_t b, s, z, h, n, r, v;
  int64_t width() const { return n + r; }
  /// Rounded up to the widest panel.
  int64_t z_pad() const { return ceil_div(z, kMaxTileCols) * kMaxTileCols; }
  int64_t width_pad() const { return ceil_div(n + r, kMaxTileCols) * kMaxTileCols; }
  int64_t v_pad() const { return ceil_div(v, kMaxTileCols) * kMaxTileCols; }
  /// Floats between rows of sums: whole vectors.
  int64_t width_pitch() const { return ceil_div(n + r, kLongestVector) * kLongestVector; }
  int64_t v_pitch() const { return ceil_div(v, kLongestVector) * kLongestVector; }

  static constexpr int64_t kLongestVector = 16;
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

/// The micro-kernels attention uses for `dtype`: the dot set only if all widths are whole pairs.
const MicroSet& attention_set(DType dtype, const AttentionSizes& d);

/// Rows to multiply with: A of a micro-kernel.
struct RowsOperand {
  const float* data;
  int64_t rs;  ///< words between rows
};

/// Queries of the largest block: the contraction length of the gradients of keys and values.
constexpr int64_t kMostQueries = 32 * kTileRows;

/// What the queries of one block see, per query and per vector; queries behind the last see
/// nothing.
struct BlockRanges {
  int64_t lanes, vectors, queries;
  int32_t begin[kMostQueries], end[kMostQueries];
  LaneRange of_vector[kMostQueries];
  KeyRange all;

  /// `queries` of them, of the vectors of `set`.
  BlockRanges(const KeyRange* ranges, int64_t queries, const MicroSet& set);
  BlockView view(int64_t vector) const {
    return {begin + vector * lanes, end + vector * lanes, of_vector + vector};
  }
  /// Vectors from the first to the last of [from, to) that sees any key of [z, z + keys).
  KeyRange vectors_seeing(int64_t from, int64_t to, int64_t z, int64_t keys) const;
  /// The union of what queries [i, i + rows) see.
  KeyRange seen_by(int64_t i, int64_t rows) const;
};

/// The keys and values of one (batch, head).
struct HeadOperands {
  AttentionSizes d;
  DType dtype;
  const MicroSet* set;
  const std::byte *kv = nullptr,
                  *kr = nullptr;  ///< first row of this head: rows h * (n + v) and r elements apart

  int64_t kv_pitch() const { return d.h * (d.n + d.v); }
  const std::byte* at(const std::byte* base, int64_t element) const {
    return base + element * static_cast<int64_t>(size_of(dtype));
  }
  /// Asks for the share of keys and values that goes with queries [s0, s0 + m) of the head before.
  void announce(RowsAhead& ahead, int64_t s0, int64_t m) const;
  /// Whole keys, own part and shared part, as rows of words: [z][width words].
  void join_keys(float* out) const;
  /// Values as rows of words: in place, or converted into out[z][v].
  RowsOperand value_rows(float* out) const;
  /// Keys as B: panels of panel_cols() columns of the width, each [z words][panel_cols()].
  void pack_keys(float* out) const;
  /// Values as B, panels like pack_keys.
  void pack_values(float* out) const;
};

HeadOperands head_operands(const AttentionSizes& d, const Tensor& kv, const Tensor& kr,
                           const MicroSet& set, int64_t batch, int64_t head);

/// `rows` rows of `width` elements as transposed B: panels of tile_cols() rows, each
/// [width words][tile_cols()].
void pack_columns(const MicroSet& set, DType dtype, const std::byte* src, int64_t pitch,
                  int64_t rows, int64_t width, float* out);
/// The same as B: panels of panel_cols() columns of the width, each [row words][panel_cols()].
void pack_row_panels(const MicroSet& set, DType dtype, const std::byte* src, int64_t pitch,
                     int64_t rows, int64_t width, float* out);

}  // namespace moetrain::cpu
