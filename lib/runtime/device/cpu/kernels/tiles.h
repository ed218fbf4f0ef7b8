// What loops over register tiles share: panels of about equal width, and rows asked for ahead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/micro.h"

namespace moetrain::cpu {

/// Columns of each panel when `n` columns are cut into the fewest panels: about equal ones, since
/// narrow tiles are slower.
inline int64_t panel_cols(const MicroSet& set, int64_t n) {
  const int64_t vectors = ceil_div(n, set.lanes);
  return ceil_div(vectors, ceil_div(vectors, set.vectors)) * set.lanes;
}

/// Asks for the cache lines of rows a few at a time while tiles run: rows of one head lie apart,
/// and no hardware prefetcher follows them.
class RowsAhead {
 public:
  /// `rows` rows of `bytes` bytes, `pitch` bytes apart.
  void add(const std::byte* from, int64_t pitch, int64_t rows, int64_t bytes) {
    if (rows <= 0 || count_ == kMostPieces) return;
    pieces_[count_++] = {from, pitch, rows, bytes};
    rows_ += rows;
  }
  /// Cuts all of it into about `turns` parts.
  void spread(int64_t turns) {
    constexpr int64_t kMostRows = 8;  // more at once would only wait for one another
    per_turn_ = std::min(kMostRows, ceil_div(rows_, std::max<int64_t>(1, turns)));
  }
  void turn() {
    for (int64_t i = 0; i < per_turn_ && current_ < count_; ++i) {
      Piece& p = pieces_[current_];
      for (int64_t byte = 0; byte < p.bytes; byte += 64) __builtin_prefetch(p.row + byte, 0, 2);
      __builtin_prefetch(p.row + p.bytes - 1, 0, 2);
      p.row += p.pitch;
      if (--p.rows == 0) ++current_;
    }
  }

 private:
  static constexpr int kMostPieces = 8;
  struct Piece {
    const std::byte* row;
    int64_t pitch, rows, bytes;
  };
  Piece pieces_[kMostPieces];
  int count_ = 0, current_ = 0;
  int64_t rows_ = 0, per_turn_ = 0;
};

}  // namespace moetrain::cpu
