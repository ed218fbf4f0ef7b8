// Matrix products over packed panels: the one driver behind dense, grouped and joined products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "runtime/device/cpu/threads.h"

namespace moetrain::cpu {

/// Where the rows of an operand stand: row r is row slots[r] / per of its memory, or r itself.
struct RowSource {
  const int32_t* slots = nullptr;
  int64_t per = 1;

  int64_t operator()(int64_t r) const { return slots ? slots[r] / per : r; }
  /// The same for rows that begin at `row`.
  RowSource from(int64_t row) const { return {slots ? slots + row : nullptr, per}; }
};

/// C[m, n] (+)= A[m, k] B[k, n]. Strides in elements. A(i, p) = a[i * lda + p], or a[p * lda + i]
/// where members are joined by rows; B(p, j) = b[p * ldb + j], or b[j * ldb + p] when
/// `b_transposed`.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  RowSource a_rows;  ///< of i
  const void* b = nullptr;
  int64_t ldb = 0;
  bool b_transposed = false;
  RowSource b_rows;                 ///< of p, where B is not transposed
  const float* packed_b = nullptr;  ///< B as pack_b leaves it, instead of `b`
  void* c = nullptr;                ///< null (swiglu only): not wanted
  int64_t ldc = 0;
  bool accumulate = false;  ///< C += ...; C must be float then
  /// For an epilogue: operands and result in C's dtype, with C's strides.
  const void *gate = nullptr, *up = nullptr;
  void* result = nullptr;
};

/// How the members of a part, products of their own, are run as one.
enum class Joined {
  kColumns,  ///< they share A (and m, k): B's side by side
  kRows,     ///< they share B (and n, k): A's and C's below one another
  kDepth,    ///< they share C (and m, n), the sum of all: contracted one after the other
};

/// What becomes of a tile of C while it is in the first-level cache.
enum class Epilogue {
  kNone,
  /// Two members joined by columns, gate and up: result = silu(gate) up of the rounded tiles.
  kSwiglu,
  /// C is the gradient d of silu(gate) up: stores dgate in c, dup in result, and no d.
  kSwigluGrad,
};

/// Parts (one per expert) of `members` products each. The parts share n, k (unless ragged), dtypes
/// and form; `member` fills one product in.
struct GemmBatch {
  int64_t count = 1;
  Gemm (*member)(const void* context, int64_t part, int64_t member) = nullptr;
  const void* context = nullptr;
  int64_t members = 1;
  Joined joined = Joined::kColumns;
  Epilogue epilogue = Epilogue::kNone;

  Gemm at(int64_t part, int64_t index) const { return member(context, part, index); }
};

/// Bytes of workspace the products need with `threads` workers; `k`: of all members that are joined
/// by depth, `members`: how many these are.
size_t gemm_workspace(DType c_type, int64_t k, int threads, Epilogue epilogue = Epilogue::kNone,
                      int64_t members = 1);

/// Floats of one packed B[k, n].
int64_t packed_b_floats(int64_t n, int64_t k, DType operands);
/// Packs B of all parts one after another into `out`, packed_b_floats each; all have the same n and
/// k and one member. Products give the same bits with and without.
void pack_b(const GemmBatch& batch, DType operands, float* out, ThreadPool& pool);

/// Runs all products of the batch. Every element of C is summed in one order that depends on the k
/// of the members alone: blocks of k in turn, each block added to C. `c_type` f32, or bf16 (rounded
/// once, after all of k). Joined by columns or rows, every member has the bits it has by itself.
void run_gemm(const GemmBatch& batch, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool);

}  // namespace moetrain::cpu
