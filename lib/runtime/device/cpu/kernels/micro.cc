// Register-tile products and packing on every instruction set Highway compiles for.
// The order of these matters to Highway.
// clang-format off
#include "runtime/device/cpu/kernels/micro.h"

#include <cstring>
#include <utility>

#include "runtime/device/cpu/kernels/hwy_targets.h"
#include "runtime/device/cpu/kernels/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/micro.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {
// Steps of k between two rounds of prefetching: one cache line of an A row read in place.
constexpr int64_t kPrefetchStep = 16;

/// Rows of A a stride apart, or anywhere. at(i, p): word p of row i.
struct Strided {
  const float* a;
  int64_t rs, cs;
  HWY_INLINE float at(int64_t i, int64_t p) const { return a[i * rs + p * cs]; }
};
template <int MR>
struct Gathered {
  const float* rows[MR];
  HWY_INLINE float at(int64_t i, int64_t p) const { return rows[i][p]; }
};

template <int MR, int NV, class A>
HWY_INLINE void tile_steps(int64_t begin, int64_t end, const A& a, const float* HWY_RESTRICT b,
                           int64_t ldb, hn::Vec<hn::ScalableTag<float>> (&acc)[MR][NV]) {
  const hn::ScalableTag<float> d;
  const int64_t width = lanes();
  for (int64_t p = begin; p < end; ++p) {
    hn::Vec<decltype(d)> vb[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) vb[j] = hn::LoadU(d, b + p * ldb + j * width);
#pragma GCC unroll 6
    for (int i = 0; i < MR; ++i) {
      const auto va = hn::Set(d, a.at(i, p));
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = hn::MulAdd(va, vb[j], acc[i][j]);
    }
  }
}

template <int MR, int NV>
HWY_INLINE void begin_tile(const float* c, int64_t ldc,
                           hn::Vec<hn::ScalableTag<float>> (&acc)[MR][NV]) {
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      // C is touched at the end: by then it has arrived.
      hwy::Prefetch(c + i * ldc + j * lanes());
      acc[i][j] = hn::Zero(hn::ScalableTag<float>());
    }
  }
}

template <int MR, int NV>
HWY_INLINE void end_tile(const hn::Vec<hn::ScalableTag<float>> (&acc)[MR][NV],
                         float* HWY_RESTRICT c, int64_t ldc, bool accumulate) {
  const hn::ScalableTag<float> d;
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      float* to = c + i * ldc + j * lanes();
      hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, to), acc[i][j]) : acc[i][j], d, to);
    }
  }
}

template <int MR, int NV>
void tile(int64_t k, const void* a_words, int64_t rs, int64_t cs, const void* b_words, int64_t ldb,
          float* HWY_RESTRICT c, int64_t ldc, bool accumulate) {
  const float* a = static_cast<const float*>(a_words);
  const float* b = static_cast<const float*>(b_words);
  hn::Vec<hn::ScalableTag<float>> acc[MR][NV];
  begin_tile<MR, NV>(c, ldc, acc);
  int64_t p = 0;
  if (cs == 1) {
    // The rows of the next tile are new streams to the hardware prefetcher: ask for them early.
    for (; p + kPrefetchStep <= k; p += kPrefetchStep) {
#pragma GCC unroll 6
      for (int i = 0; i < MR; ++i) hwy::Prefetch(a + (MR + i) * rs + p);
      tile_steps<MR, NV>(0, kPrefetchStep, Strided{a + p, rs, 1}, b + p * ldb, ldb, acc);
    }
  }
  tile_steps<MR, NV>(0, k - p, Strided{a + p * cs, rs, cs}, b + p * ldb, ldb, acc);
  end_tile<MR, NV>(acc, c, ldc, accumulate);
}

template <int MR, int NV>
void gathered_tile(int64_t k, const void* a_rows, int64_t, int64_t, const void* b_words,
                   int64_t ldb, float* HWY_RESTRICT c, int64_t ldc, bool accumulate) {
  const float* const* next = static_cast<const float* const*>(a_rows) + MR;
  const float* b = static_cast<const float*>(b_words);
  Gathered<MR> a;
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) a.rows[i] = static_cast<const float* const*>(a_rows)[i];
  hn::Vec<hn::ScalableTag<float>> acc[MR][NV];
  begin_tile<MR, NV>(c, ldc, acc);
  int64_t p = 0;
  for (; p + kPrefetchStep <= k; p += kPrefetchStep) {
#pragma GCC unroll 6
    for (int i = 0; i < MR; ++i) hwy::Prefetch(next[i] + p);
    tile_steps<MR, NV>(p, p + kPrefetchStep, a, b, ldb, acc);
  }
  tile_steps<MR, NV>(p, k, a, b, ldb, acc);
  end_tile<MR, NV>(acc, c, ldc, accumulate);
}

HWY_INLINE float to_word(float x) { return x; }
HWY_INLINE float to_word(uint16_t x) { return bf16_to_float(x); }

/// Packs rows of T as floats.
template <class T>
void pack_rows(const void* src_void, int64_t ld, int64_t k, int64_t n, int64_t pad, void* out_void,
               int64_t ldo) {
  const T* src = static_cast<const T*>(src_void);
  float* out = static_cast<float*>(out_void);
  for (int64_t p = 0; p < k; ++p) {
    const T* from = src + p * ld;
    float* HWY_RESTRICT to = out + p * ldo;
    for (int64_t j = 0; j < n; ++j) to[j] = to_word(from[j]);
    for (int64_t j = n; j < pad; ++j) to[j] = 0;
  }
}

/// Rows of a transposed A far ahead: its pitch is too long for the hardware prefetcher.
constexpr int64_t kPackAhead = 12;

/// Writes one step of a packed A tile. Where `room` columns reach a vector of eight, two words too
/// many are written: the next step, or the padding behind the tile, takes them.
HWY_INLINE void put_step(const float* from, int64_t room, float* to) {
#if HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(room >= 8)) {
    const hn::FixedTag<float, 8> d;
    hn::StoreU(hn::LoadU(d, from), d, to);
    return;
  }
#endif
  std::memcpy(to, from, (room < kTileRows ? room : kTileRows) * sizeof(float));
}
HWY_INLINE void put_step(const uint16_t* from, int64_t room, float* to) {
#if HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(room >= 8)) {
    const hn::FixedTag<uint16_t, 8> d16;
    const hn::FixedTag<uint32_t, 8> d32;
    hn::StoreU(hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))), d32,
               reinterpret_cast<uint32_t*>(to));
    return;
  }
#endif
  const int64_t n = room < kTileRows ? room : kTileRows;
  for (int64_t j = 0; j < n; ++j) to[j] = to_word(from[j]);
}
/// Pairs of two rows; `high` may be null.
HWY_INLINE void put_pairs(const uint16_t* low, const uint16_t* high, int64_t room, uint32_t* to) {
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(room >= 8 && high)) {
    const hn::FixedTag<uint16_t, 8> d;
    const auto a = hn::LoadU(d, low), b = hn::LoadU(d, high);
    hn::StoreU(hn::InterleaveLower(d, a, b), d, reinterpret_cast<uint16_t*>(to));
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, reinterpret_cast<uint16_t*>(to + 4));
    return;
  }
#endif
  const int64_t n = room < kTileRows ? room : kTileRows;
  for (int64_t j = 0; j < n; ++j)
    to[j] = low[j] | (high ? static_cast<uint32_t>(high[j]) << 16 : 0u);
}

/// Copies `n` columns of rows p into tiles of kTileRows columns each.
template <class T>
void pack_tiles(const void* src_void, int64_t ld, int64_t k, int64_t n, void* out_void,
                int64_t pitch) {
  const T* src = static_cast<const T*>(src_void);
  float* out = static_cast<float*>(out_void);
  for (int64_t p = 0; p < k; ++p) {
    const T* from = src + p * ld;
    float* to = out + p * kTileRows;
    if (p + kPackAhead < k) {
      const char* ahead = reinterpret_cast<const char*>(from + kPackAhead * ld);
      for (int64_t byte = 0; byte < n * static_cast<int64_t>(sizeof(T)); byte += 64) {
        hwy::Prefetch(ahead + byte);
      }
    }
    for (int64_t j = 0; j < n; j += kTileRows, to += pitch) put_step(from + j, n - j, to);
  }
}

void pack_tiles_pairs(const void* src_void, int64_t ld, int64_t k, int64_t n, void* out_void,
                      int64_t pitch) {
  const uint16_t* src = static_cast<const uint16_t*>(src_void);
  uint32_t* out = static_cast<uint32_t*>(out_void);
  for (int64_t p = 0; p < k; p += 2) {
    const uint16_t* low = src + p * ld;
    const uint16_t* high = p + 1 < k ? low + ld : nullptr;
    if (p + kPackAhead + 1 < k) {
      const char* ahead = reinterpret_cast<const char*>(low + kPackAhead * ld);
      for (int64_t byte = 0; byte < n * 2; byte += 64) {
        hwy::Prefetch(ahead + byte);
        hwy::Prefetch(ahead + ld * 2 + byte);
      }
    }
    uint32_t* to = out + p / 2 * kTileRows;
    for (int64_t j = 0; j < n; j += kTileRows, to += pitch) {
      put_pairs(low + j, high ? high + j : nullptr, n - j, to);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
using Four = hn::Vec<hn::FixedTag<float, 4>>;
/// A 4 x 4 block of 32-bit words, transposed.
HWY_INLINE void load_transposed(const float* src, int64_t ld, Four (&to)[4]) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d2;
  const auto r0 = hn::LoadU(d, src), r1 = hn::LoadU(d, src + ld);
  const auto r2 = hn::LoadU(d, src + 2 * ld), r3 = hn::LoadU(d, src + 3 * ld);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
  const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
  const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
  to[0] = hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23));
  to[1] = hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23));
  to[2] = hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23));
  to[3] = hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23));
}
#endif

/// Transposes a 4 x 4 block of 32-bit words.
HWY_INLINE void transpose_4x4(const float* src, int64_t ld, float* out, int64_t ldo) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t p = 0; p < 4; ++p) {
    for (int64_t j = 0; j < 4; ++j) out[p * ldo + j] = src[j * ld + p];
  }
#else
  const hn::FixedTag<float, 4> d;
  Four rows[4];
  load_transposed(src, ld, rows);
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) hn::StoreU(rows[p], d, out + p * ldo);
#endif
}

/// Transposes 32-bit words; `bytes` apart are the source rows (rows of bf16 pairs may be odd).
void transpose_words(const char* src, int64_t bytes, int64_t k, int64_t n, float* out,
                     int64_t ldo) {
  int64_t j = 0;
  if (bytes % 4 == 0) {
    const int64_t ld = bytes / 4;
    for (; j + 16 <= n; j += 16) {
      const float* from = reinterpret_cast<const float*>(src) + j * ld;
      int64_t p = 0;
      for (; p + 4 <= k; p += 4) {
#pragma GCC unroll 4
        for (int q = 0; q < 16; q += 4) {
          transpose_4x4(from + q * ld + p, ld, out + p * ldo + j + q, ldo);
        }
      }
      for (; p < k; ++p) {
        for (int64_t q = 0; q < 16; ++q) out[p * ldo + j + q] = from[q * ld + p];
      }
    }
  }
  for (; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) std::memcpy(out + p * ldo + j, src + j * bytes + p * 4, 4);
  }
}

void zero_columns(float* out, int64_t ldo, int64_t k, int64_t begin, int64_t end) {
  if (begin >= end) return;
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = begin; j < end; ++j) out[p * ldo + j] = 0;
  }
}

void pack_transposed_f32(const void* src, int64_t ld, int64_t k, int64_t n, int64_t pad, void* out,
                         int64_t ldo) {
  transpose_words(static_cast<const char*>(src), ld * 4, k, n, static_cast<float*>(out), ldo);
  zero_columns(static_cast<float*>(out), ldo, k, n, pad);
}

void pack_transposed_bf16(const void* src_void, int64_t ld, int64_t k, int64_t n, int64_t pad,
                          void* out_void, int64_t ldo) {
  const uint16_t* src = static_cast<const uint16_t*>(src_void);
  float* out = static_cast<float*>(out_void);
  int64_t whole = 0, j = 0;  // steps and columns done in blocks
#if HWY_TARGET != HWY_SCALAR
  // Pairs of bf16 move as words and part into two rows of floats at the end.
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<uint32_t, 4> d32;
  if (ld % 2 == 0) {
    whole = k / 8 * 8;
    for (; j + 4 <= n; j += 4) {
      const float* from = reinterpret_cast<const float*>(src + j * ld);
      for (int64_t p = 0; p < whole; p += 8) {
        Four pairs[4];
        load_transposed(from + p / 2, ld / 2, pairs);
        float* to = out + p * ldo + j;
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q, to += 2 * ldo) {
          const auto words = hn::BitCast(d32, pairs[q]);
          hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(words)), d, to);
          hn::StoreU(hn::BitCast(d, hn::And(words, hn::Set(d32, 0xffff0000u))), d, to + ldo);
        }
      }
    }
  }
#endif
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t p = c < j ? whole : 0; p < k; ++p)
      out[p * ldo + c] = bf16_to_float(src[c * ld + p]);
  }
  zero_columns(out, ldo, k, n, pad);
}

/// Rows p and p + 1 of bf16 meet in one row of words.
void pack_rows_pairs(const void* src_void, int64_t ld, int64_t k, int64_t n, int64_t pad,
                     void* out_void, int64_t ldo) {
  const uint16_t* src = static_cast<const uint16_t*>(src_void);
  uint32_t* out = static_cast<uint32_t*>(out_void);
  for (int64_t p = 0; p < k; p += 2) {
    const uint16_t* low = src + p * ld;
    uint32_t* HWY_RESTRICT to = out + p / 2 * ldo;
    if (p + 1 < k) {
      const uint16_t* high = low + ld;
      for (int64_t j = 0; j < n; ++j) to[j] = low[j] | static_cast<uint32_t>(high[j]) << 16;
    } else {
      for (int64_t j = 0; j < n; ++j) to[j] = low[j];
    }
    for (int64_t j = n; j < pad; ++j) to[j] = 0;
  }
}

void pack_transposed_pairs(const void* src_void, int64_t ld, int64_t k, int64_t n, int64_t pad,
                           void* out_void, int64_t ldo) {
  const uint16_t* src = static_cast<const uint16_t*>(src_void);
  float* out = static_cast<float*>(out_void);
  transpose_words(static_cast<const char*>(src_void), ld * 2, k / 2, n, out, ldo);
  if (k % 2) {
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t word = src[j * ld + k - 1];
      std::memcpy(out + k / 2 * ldo + j, &word, 4);
    }
  }
  zero_columns(out, ldo, (k + 1) / 2, n, pad);
}

void round_tile(const float* tile, int64_t ld, int64_t rows, int64_t cols, uint16_t* out,
                int64_t ldo) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += lanes()) {
      store(load(tile + i * ld + j, cols - j), out + i * ldo + j, cols - j);
    }
  }
}

template <int MR, int... NV>
void fill_row(MicroSet& set, std::integer_sequence<int, NV...>) {
  ((set.kernel[MR - 1][NV] = &tile<MR, NV + 1>), ...);
  ((set.gathered[MR - 1][NV] = &gathered_tile<MR, NV + 1>), ...);
}

MicroSet make_set(bool convert) {
  MicroSet set;
  set.lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<float>()));
  // Accumulators, a row of B and one broadcast must fit the registers: 32 of them, or 16.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  constexpr int kVectors = 4;
#else
  constexpr int kVectors = 2;
#endif
  set.vectors = kVectors;
  set.convert = convert;
  using Sequence = std::make_integer_sequence<int, kVectors>;
  fill_row<1>(set, Sequence());
  fill_row<2>(set, Sequence());
  fill_row<3>(set, Sequence());
  fill_row<4>(set, Sequence());
  fill_row<5>(set, Sequence());
  fill_row<6>(set, Sequence());
  set.pack = convert ? PackFns{&pack_rows<uint16_t>, &pack_transposed_bf16, &pack_tiles<uint16_t>}
                     : PackFns{&pack_rows<float>, &pack_transposed_f32, &pack_tiles<float>};
  set.round = &round_tile;
  return set;
}

const MicroSet& float_set() {
  static const MicroSet set = make_set(false);
  return set;
}

const MicroSet& bf16_as_float_set() {
  static const MicroSet set = make_set(true);
  return set;
}

const MicroSet& bf16_dot_set() {
  static const MicroSet set = [] {
    MicroSet s;
    s.lanes = 16;
    s.vectors = kMaxTileVectors;
    s.pair = 2;
    get_bf16_dot_kernels(s);
    s.pack = {&pack_rows_pairs, &pack_transposed_pairs, &pack_tiles_pairs};
    s.round = &round_tile;
    return s;
  }();
  return set;
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(float_set);
HWY_EXPORT(bf16_as_float_set);
HWY_EXPORT(bf16_dot_set);

const MicroSet& micro_set(DType operands, bool dot) {
  const Target target = current_target();
  if (operands != DType::kBF16) return HWY_DYNAMIC_DISPATCH(float_set)();
  if (dot && target == Target::kAvx512Bf16) return HWY_DYNAMIC_DISPATCH(bf16_dot_set)();
  return HWY_DYNAMIC_DISPATCH(bf16_as_float_set)();
}

}  // namespace moetrain::cpu
#endif
