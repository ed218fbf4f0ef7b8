// Matrix products over packed panels: the one driver behind dense, grouped and head products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "runtime/device/cpu/threads.h"

namespace moetrain::cpu {

/// C[m, n] (+)= A[m, k] B[k, n]. Strides in elements. A(i, p) = a[i * a_rs + p * a_cs] with one of
/// the two strides 1; B(p, j) = b[p * ldb + j], or b[j * ldb + p] when `b_transposed`.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t a_rs = 0, a_cs = 1;
  const void* b = nullptr;
  int64_t ldb = 0;
  bool b_transposed = false;
  const float* packed_b = nullptr;  ///< B as pack_b leaves it, instead of `b`
  void* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;  ///< C += ...; C must be float then
};

/// One of several products that share n, k (unless ragged), dtypes and form; fills in `gemm`.
struct GemmBatch {
  int64_t count = 1;
  Gemm (*part)(const void* context, int64_t index) = nullptr;
  const void* context = nullptr;
};

/// Bytes of workspace the products need with `threads` workers.
size_t gemm_workspace(DType c_type, int64_t k, int threads);

/// Floats of one packed B[k, n].
int64_t packed_b_floats(int64_t n, int64_t k, DType operands);
/// Packs B of all parts one after another into `out`, packed_b_floats each; all have the same n and
/// k. Products give the same bits with and without.
void pack_b(const GemmBatch& batch, DType operands, float* out, ThreadPool& pool);

/// Runs all products of the batch. Every element of C is summed in one order that depends on k
/// alone: blocks of k in turn, each block added to C. `c_type` f32, or bf16 (rounded once, after
/// all of k).
void run_gemm(const GemmBatch& batch, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool);
/// The same for one product.
void run_gemm(const Gemm& gemm, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool);

}  // namespace moetrain::cpu
