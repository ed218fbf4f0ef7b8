// The table of fast CPU kernels: one row per op variant, pure functions over tensors.
#pragma once

#include <cstddef>
#include <span>

#include "graph/attrs.h"
#include "graph/graph.h"
#include "runtime/device/cpu/threads.h"

namespace moetrain::cpu {

/// One launch. Ragged tensors come with their actual row count ([rows, ...], rows may be 0).
/// Outputs that alias an input (OpDef::alias) carry the same pointer. `workspace` has at least the
/// bytes the kernel's `workspace` function asked for; its content is undefined before and after.
struct LaunchArgs {
  const Attrs& attrs;
  std::span<const Tensor> in;
  std::span<Tensor> out;
  std::byte* workspace;
  size_t workspace_bytes;
  ThreadPool& pool;
  /// By operand: a weight as the kernel's `pack` left it. Null, or none at all: as it is.
  std::span<const float* const> packed = {};

  const float* packed_copy(size_t operand) const {
    return operand < packed.size() ? packed[operand] : nullptr;
  }
};

/// One kernel. Its result is bit-identical for any number of threads and any timing.
struct Kernel {
  const char* op;    ///< OpDef name
  const char* name;  ///< for traces and tests
  bool (*accepts)(const Attrs&, std::span<const Type> in, std::span<const Type> out);
  /// Bytes needed for the largest row counts of the types, with `threads` workers. Null: none.
  size_t (*workspace)(const Attrs&, std::span<const Type> in, std::span<const Type> out,
                      int threads);
  void (*run)(const LaunchArgs&);
  /// Floats of a packed copy of operand `operand`, which run() can use instead; 0: it has no use
  /// for one, as it has for none where this is null. Its results are the same bits with and
  /// without.
  int64_t (*packed_floats)(const Attrs&, const Type& weight, size_t operand) = nullptr;
  void (*pack)(const Tensor& weight, float* out, ThreadPool& pool) = nullptr;
};

/// All kernels, for each op the most special first: take the first that accepts.
std::span<const Kernel> cpu_kernels();

/// The first kernel for `op` that accepts, or null.
const Kernel* find_kernel(const char* op, const Attrs& attrs, std::span<const Type> in,
                          std::span<const Type> out);

/// One strided block: `rows` rows of `row_bytes`, pitches in bytes.
struct BlockCopy {
  const void* from;
  int64_t from_pitch;
  void* to;
  int64_t to_pitch;
  int64_t rows;
  int64_t row_bytes;
};
/// Copies all blocks (which do not overlap one another) with all workers.
void copy_blocks(std::span<const BlockCopy> blocks, ThreadPool& pool);

}  // namespace moetrain::cpu
