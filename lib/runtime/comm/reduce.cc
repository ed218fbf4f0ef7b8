// Reduction loops, plain so that the compiler vectorises them (this file is compiled with -O3).
#include "runtime/comm/reduce.h"

#include <cstring>

#include "base/error.h"

namespace moetrain::comm {

namespace {

template <class T>
void add(T* __restrict acc, const T* __restrict src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += src[i];
}

template <>
void add(int32_t* __restrict acc, const int32_t* __restrict src, int64_t n) {
  // unsigned: overflow wraps instead of being undefined
  for (int64_t i = 0; i < n; ++i) {
    acc[i] = static_cast<int32_t>(static_cast<uint32_t>(acc[i]) + static_cast<uint32_t>(src[i]));
  }
}

template <>
void add(int64_t* __restrict acc, const int64_t* __restrict src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    acc[i] = static_cast<int64_t>(static_cast<uint64_t>(acc[i]) + static_cast<uint64_t>(src[i]));
  }
}

template <class T>
void max(T* __restrict acc, const T* __restrict src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = !(src[i] <= acc[i]) && acc[i] == acc[i] ? src[i] : acc[i];
}

template <class T>
void reduce(void* acc, const void* src, int64_t n, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    add(static_cast<T*>(acc), static_cast<const T*>(src), n);
  } else {
    max(static_cast<T*>(acc), static_cast<const T*>(src), n);
  }
}

void widen(float* __restrict acc, const uint16_t* __restrict src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = bf16_to_float(src[i]);
}

void reduce_bf16(float* __restrict acc, const uint16_t* __restrict src, int64_t n, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    for (int64_t i = 0; i < n; ++i) acc[i] += bf16_to_float(src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const float value = bf16_to_float(src[i]);
      acc[i] = !(value <= acc[i]) && acc[i] == acc[i] ? value : acc[i];
    }
  }
}

void round(uint16_t* __restrict dst, const float* __restrict acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = float_to_bf16(acc[i]);
}

}  // namespace

void accumulate_first(void* acc, const void* src, int64_t count, DType dtype) {
  if (dtype == DType::kBF16) return widen(static_cast<float*>(acc), static_cast<const uint16_t*>(src), count);
  if (acc != src) std::memcpy(acc, src, count * size_of(dtype));
}

void accumulate(void* acc, const void* src, int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kF32: return reduce<float>(acc, src, count, op);
    case DType::kF64: return reduce<double>(acc, src, count, op);
    case DType::kI32: return reduce<int32_t>(acc, src, count, op);
    case DType::kI64: return reduce<int64_t>(acc, src, count, op);
    case DType::kBF16:
      return reduce_bf16(static_cast<float*>(acc), static_cast<const uint16_t*>(src), count, op);
    case DType::kU8: break;
  }
  MT_CHECK(false, "no reduction over ", name_of(dtype));
}

void store_accumulated(void* dst, const void* acc, int64_t count, DType dtype) {
  if (dtype == DType::kBF16) return round(static_cast<uint16_t*>(dst), static_cast<const float*>(acc), count);
  if (dst != acc) std::memcpy(dst, acc, count * size_of(dtype));
}

}  // namespace moetrain::comm
