// Embedding look-up, and its gradient: rows are added in position order, vocabulary ranges in
// parallel.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

template <class X, class Y>
void look_up(const Tensor& table, const Tensor& ids, const Tensor& y, int64_t first, int64_t begin,
             int64_t end) {
  const int64_t vocab = table.shape[0], width = table.shape[1];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = ids.as<const int32_t>()[t] - first;
    Y* to = y.as<Y>() + t * width;
    if (row < 0 || row >= vocab) {
      std::memset(to, 0, width * sizeof(Y));
      continue;
    }
    const X* from = table.as<const X>() + row * width;
    for (int64_t i = 0; i < width; i += lanes())
      store(load(from + i, width - i), to + i, width - i);
  }
}

void embedding_rows(const Tensor& table, const Tensor& ids, const Tensor& y, int64_t first,
                    int64_t begin, int64_t end) {
  if (table.dtype == DType::kF32) {
    if (y.dtype == DType::kF32)
      look_up<float, float>(table, ids, y, first, begin, end);
    else
      look_up<float, uint16_t>(table, ids, y, first, begin, end);
  } else {
    if (y.dtype == DType::kF32)
      look_up<uint16_t, float>(table, ids, y, first, begin, end);
    else
      look_up<uint16_t, uint16_t>(table, ids, y, first, begin, end);
  }
}

template <class T>
void add_rows(const Tensor& ids, const Tensor& dy, float* grad, int64_t first, int64_t begin,
              int64_t end) {
  const int64_t width = dy.cols();
  const int32_t* id = ids.as<const int32_t>();
  for (int64_t t = 0, n = ids.numel(); t < n; ++t) {
    const int64_t row = id[t] - first;
    if (row < begin || row >= end) continue;
    const T* from = dy.as<const T>() + t * width;
    float* to = grad + row * width;
    for (int64_t i = 0; i < width; i += lanes()) {
      store(hn::Add(load(to + i, width - i), load(from + i, width - i)), to + i, width - i);
    }
  }
}

/// Adds the rows whose id falls into table rows [begin, end).
void embedding_grad_range(const Tensor& ids, const Tensor& dy, float* grad, int64_t first,
                          int64_t begin, int64_t end) {
  if (dy.dtype == DType::kF32)
    add_rows<float>(ids, dy, grad, first, begin, end);
  else
    add_rows<uint16_t>(ids, dy, grad, first, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(embedding_rows);
HWY_EXPORT(embedding_grad_range);

namespace {

using Types = std::span<const Type>;

bool accepts_embedding(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && in[1].dtype == DType::kI32 && is_f32_or_bf16(out[0]);
}

bool accepts_grad(const Attrs&, Types in, Types out) {
  return in[0].dtype == DType::kI32 && is_f32_or_bf16(in[1]) && out[0].dtype == DType::kF32;
}

void run_embedding(const LaunchArgs& args) {
  const int64_t first = args.attrs.integer_or("vocab_begin", 0);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.in[0].shape[1]));
  args.pool.run_ranges(args.in[1].numel(), grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(embedding_rows)(args.in[0], args.in[1], args.out[0], first, begin, end);
  });
}

void run_grad(const LaunchArgs& args) {
  const int64_t first = args.attrs.integer_or("vocab_begin", 0);
  const int64_t vocab = args.out[0].shape[0], width = args.out[0].shape[1];
  const bool accumulate = args.in.size() == 3;
  float* grad = args.out[0].as<float>();
  // Every range scans all ids: few ranges, but enough to keep the workers busy.
  const int64_t grain = std::max<int64_t>(16, ceil_div(vocab, 8 * args.pool.size()));
  args.pool.run_ranges(vocab, grain, [&](int64_t begin, int64_t end, int) {
    if (!accumulate) {
      std::memset(grad + begin * width, 0, (end - begin) * width * sizeof(float));
    } else if (args.in[2].data != args.out[0].data) {
      std::memcpy(grad + begin * width, args.in[2].as<float>() + begin * width,
                  (end - begin) * width * sizeof(float));
    }
    HWY_DYNAMIC_DISPATCH(embedding_grad_range)(args.in[0], args.in[1], grad, first, begin, end);
  });
}

constexpr Kernel kRows[] = {
    {"embedding", "embedding.vector", &accepts_embedding, nullptr, &run_embedding},
    {"embedding_grad", "embedding_grad.vector", &accepts_grad, nullptr, &run_grad},
};

}  // namespace

std::span<const Kernel> embedding_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
