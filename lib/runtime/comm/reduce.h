// Element-wise reductions between ranks: fp32 accumulation for bf16, one rounding at the end.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "runtime/comm/comm.h"

namespace moetrain::comm {

/// The type sums of `dtype` are kept in: f32 for bf16, else the type itself.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

/// acc[i] = src[i]; acc has the accumulator's type.
void accumulate_first(void* acc, const void* src, int64_t count, DType dtype);
/// acc[i] = op(acc[i], src[i]). A NaN on either side of kMax stays NaN.
void accumulate(void* acc, const void* src, int64_t count, DType dtype, ReduceOp op);
/// dst[i] = acc[i], rounded once to `dtype`. dst may be acc when the types agree.
void store_accumulated(void* dst, const void* acc, int64_t count, DType dtype);

}  // namespace moetrain::comm
