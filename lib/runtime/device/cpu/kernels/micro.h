// Register-tile products, one per tile size and instruction set, and the packing that feeds them.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace moetrain::cpu {

/// Rows of the largest register tile, on every instruction set.
constexpr int kTileRows = 6;
/// Vectors per row of the largest register tile.
constexpr int kMaxTileVectors = 4;
/// Columns of the widest tile on any instruction set (AVX-512: 4 vectors of 16).
constexpr int kMaxTileCols = 64;

/// C[MR, NV * lanes] (+)= A[MR, k] B[k, NV * lanes] over `k` words. A word is one float, or (in the
/// bf16 dot set) two bf16 that meet in one product pair. A(i, p) = a[i * rs + p * cs]: strides in
/// words, A is read in place. B is packed: row p at b + p * ldb. C is float, row i at c + i * ldc.
/// The sum runs over ascending p in one chain per element, and is then added to C or stored.
using MicroKernel = void (*)(int64_t k, const void* a, int64_t rs, int64_t cs, const void* b,
                             int64_t ldb, float* c, int64_t ldc, bool accumulate);

/// Packing of operands into words. Shapes in elements; strides in elements; out rows of `ldo`
/// words. Missing columns up to `pad` and the missing second half of a last pair become zeros.
struct PackFns {
  /// out[p][j] = src[p * ld + j]: p < k, j < n, columns [n, pad) zero.
  void (*rows)(const void* src, int64_t ld, int64_t k, int64_t n, int64_t pad, void* out,
               int64_t ldo);
  /// out[p][j] = src[j * ld + p]: p < k, j < n, columns [n, pad) zero.
  void (*transposed)(const void* src, int64_t ld, int64_t k, int64_t n, int64_t pad, void* out,
                     int64_t ldo);
  /// A transposed operand as A: tile t of kTileRows columns, out[t * pitch + p * 6 + i] =
  /// src[p * ld + t * 6 + i]; columns behind n of the last tile are undefined.
  void (*tiles)(const void* src, int64_t ld, int64_t k, int64_t n, void* out, int64_t pitch);
};

/// Words from one packed A tile of `words` steps to the next: a cache line more than needed, so
/// that the tiles do not all fall into one set of the first-level cache.
constexpr int64_t tile_pitch(int64_t words) { return (words * kTileRows + 15) / 16 * 16 + 16; }

/// The micro-kernels of one instruction set for one operand dtype.
struct MicroSet {
  int lanes = 0;         ///< floats per vector
  int vectors = 0;       ///< vectors per row of the widest tile
  int pair = 1;          ///< elements of k per word: 1, or 2 for the bf16 dot
  bool convert = false;  ///< operands are bf16 and packing turns them into floats
  MicroKernel kernel[kTileRows][kMaxTileVectors] = {};
  /// The same for rows of A that stand anywhere: `a` is an array of 2 * kTileRows pointers to
  /// words, the tile's rows and those asked for next, as many as it has; rs and cs are not used.
  MicroKernel gathered[kTileRows][kMaxTileVectors] = {};
  PackFns pack;
  /// Rounds a float tile to bf16: out[i * ldo + j] = tile[i * ld + j].
  void (*round)(const float* tile, int64_t ld, int64_t rows, int64_t cols, uint16_t* out,
                int64_t ldo) = nullptr;

  int tile_cols() const { return lanes * vectors; }
};

/// The set for float or bf16 operands on the instruction set in use.
/// (`dot` false: bf16 operands become floats even where there is a dot instruction, for odd
/// widths).
const MicroSet& micro_set(DType operands, bool dot = true);

/// True when this build and CPU have the bf16 dot instruction.
bool bf16_dot_supported();
/// Fills in the bf16 dot kernels (lanes 16, 4 vectors); only if supported.
void get_bf16_dot_kernels(MicroSet& set);

}  // namespace moetrain::cpu
