// Token rows to and from experts: dispatch, combine and their gradients, row by row in parallel.
// The order of these matters to Highway.
// clang-format off
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "hwy/cache_control.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/cpu/kernels/experts.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/device/cpu/kernels/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace moetrain::cpu {
namespace HWY_NAMESPACE {

/// Bytes of a row to ask for before it is used: the hardware does not guess where the next row is,
/// but goes on by itself from there.
constexpr int64_t kAnnounced = 512;

/// Rows from so many bytes on are written past the caches: they would not stay there until the products
/// behind come to them, and a store through the cache reads the line first.
constexpr int64_t kStreamedBytes = int64_t{4} << 20;

HWY_INLINE void announce(const void* row, int64_t bytes) {
  for (int64_t b = 0; b < std::min(bytes, kAnnounced); b += 64)
    __builtin_prefetch(static_cast<const char*>(row) + b);
}

/// y[t] = sum over the token's slots, in slot order, of weight * row (weight 1 without `weight`).
template <class T, class Y>
void gather_loop(const Tensor& rows, const int32_t* row_of, const float* weight, const Tensor& y,
                 int64_t top_k, int64_t begin, int64_t end) {
  const int64_t width = y.cols();
  const T* all = rows.as<const T>();
  for (int64_t t = begin; t < end; ++t) {
    Y* to = y.as<Y>() + t * width;
    if (t + 1 < end) {
      for (int64_t k = (t + 1) * top_k; k < (t + 2) * top_k; ++k) {
        if (row_of[k] >= 0) announce(all + row_of[k] * width, width * sizeof(T));
      }
    }
    // Both sides of the same width meet in the order load_two leaves them in.
    constexpr int64_t kVectors = sizeof(T) == sizeof(Y) ? 2 : 1;
    for (int64_t i = 0; i < width; i += kVectors * lanes()) {
      Two sum{set1(0.0f), set1(0.0f)};
      for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
        if (row_of[k] < 0) continue;
        const T* from = all + row_of[k] * width + i;
        const VF w = set1(weight ? weight[k] : 1.0f);
        if constexpr (kVectors == 2) {
          const Two v = load_two(from, width - i);
          sum = {hn::MulAdd(w, v.a, sum.a), hn::MulAdd(w, v.b, sum.b)};
        } else {
          sum.a = hn::MulAdd(w, load(from, width - i), sum.a);
        }
      }
      if constexpr (kVectors == 2)
        store_two(sum, to + i, width - i);
      else
        store(sum.a, to + i, width - i);
    }
  }
}

void gather_rows(const Tensor& rows, const int32_t* row_of, const float* weight, const Tensor& y,
                 int64_t top_k, int64_t begin, int64_t end) {
  if (rows.dtype == DType::kF32) {
    gather_loop<float, float>(rows, row_of, weight, y, top_k, begin, end);
  } else if (y.dtype == DType::kF32) {
    gather_loop<uint16_t, float>(rows, row_of, weight, y, top_k, begin, end);
  } else {
    gather_loop<uint16_t, uint16_t>(rows, row_of, weight, y, top_k, begin, end);
  }
}

/// drow = weight * dy; returns <dy, row>. `stream`: past the caches where whole vectors are written.
template <class D, class T>
HWY_INLINE float combine_grad_row(const D* dy, const T* row, float weight, T* drow, int64_t width,
                                  bool stream) {
  const VF w = set1(weight);
  VF even = set1(0.0f), odd = set1(0.0f);
  const auto one = [&](int64_t i, auto n) HWY_ATTR {
    // Both sides in one order: pairs where their widths differ.
    Two d;
    if constexpr (sizeof(D) == sizeof(T))
      d = load_two(dy + i, n);
    else
      d = load_pairs(dy + i, n);
    const Two r = load_two(row + i, n);
    even = hn::MulAdd(d.a, r.a, even);
    odd = hn::MulAdd(d.b, r.b, odd);
    return Two{hn::Mul(w, d.a), hn::Mul(w, d.b)};
  };
  if (stream) {
    int64_t i = 0;
    for (; i + 2 * lanes() <= width; i += 2 * lanes()) stream_two(one(i, Whole()), drow + i);
    if (i < width) store_two(one(i, width - i), drow + i, width - i);
  } else {
    by_two(0, width, [&](int64_t i, auto n) HWY_ATTR { store_two(one(i, n), drow + i, n); });
  }
  return sum_lanes(hn::Add(even, odd));
}

/// For every slot with a row: drow = weight * dy[token] and dweight = <dy[token], row>.
template <class D, class T>
void combine_grad_loop(std::span<const Tensor> in, std::span<Tensor> out, const int32_t* row_of,
                       int64_t top_k, int64_t begin, int64_t end) {
  const int64_t width = in[0].cols();
  const float* weight = in[2].as<const float>();
  const T* rows = in[4].as<const T>();
  T* drows = out[0].as<T>();
  const bool stream = static_cast<int64_t>(out[0].bytes()) >= kStreamedBytes &&
                      reinterpret_cast<uintptr_t>(drows) % 64 == 0 && width * sizeof(T) % 64 == 0;
  for (int64_t t = begin; t < end; ++t) {
    const D* dy = in[0].as<const D>() + t * width;
    for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
      if (k + 1 < end * top_k && row_of[k + 1] >= 0) {
        announce(rows + row_of[k + 1] * width, width * sizeof(T));
        if (!stream) announce(drows + row_of[k + 1] * width, width * sizeof(T));
      }
      float dot = 0;
      if (row_of[k] >= 0) {
        dot = combine_grad_row(dy, rows + row_of[k] * width, weight[k], drows + row_of[k] * width,
                               width, stream);
      }
      out[1].as<float>()[k] = dot;
    }
  }
  hwy::FlushStream();
}

void combine_grad_tokens(std::span<const Tensor> in, std::span<Tensor> out, const int32_t* row_of,
                         int64_t top_k, int64_t begin, int64_t end) {
  if (in[4].dtype == DType::kF32) {
    combine_grad_loop<float, float>(in, out, row_of, top_k, begin, end);
  } else if (in[0].dtype == DType::kF32) {
    combine_grad_loop<float, uint16_t>(in, out, row_of, top_k, begin, end);
  } else {
    combine_grad_loop<uint16_t, uint16_t>(in, out, row_of, top_k, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moetrain::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetrain::cpu {

HWY_EXPORT(gather_rows);
HWY_EXPORT(combine_grad_tokens);

namespace {

using Types = std::span<const Type>;

/// Tokens per task: about 64 KB of each operand.
int64_t grain_of(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

bool accepts_dispatch(const Attrs&, Types in, Types out) {
  return in[0].dtype == out[0].dtype && in[1].dtype == DType::kI32;
}

bool accepts_combine(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[0]) && is_f32_or_bf16(out[0]) &&
         (in[0].dtype == out[0].dtype || out[0].dtype == DType::kF32) &&
         (in.size() < 4 || in[2].dtype == DType::kF32);
}

bool accepts_combine_grad(const Attrs&, Types in, Types out) {
  return is_f32_or_bf16(in[4]) && (in[0].dtype == in[4].dtype || in[0].dtype == DType::kF32) &&
         in[4].dtype == out[0].dtype && in[2].dtype == DType::kF32;
}

size_t dispatch_workspace(const Attrs& attrs, Types, Types, int) {
  return kCarverSlack + round_up_64((attrs.integer("experts") + 1) * sizeof(int32_t));
}

size_t slots_workspace(const Attrs&, Types in, Types, int) {
  // idx is the last operand of dispatch_grad and combine, the fourth of combine_grad.
  const Type& idx = in.size() == 3 ? in[2] : in[3];
  return kCarverSlack + round_up_64(numel(idx.shape) * sizeof(int32_t));
}

void copy_token_rows(const Tensor& x, const int32_t* source, int64_t rows, int64_t top_k, void* out,
                     ThreadPool& pool) {
  const int64_t line = x.cols() * static_cast<int64_t>(size_of(x.dtype));
  pool.run_ranges(rows, grain_of(x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(static_cast<std::byte*>(out) + r * line,
                  x.as<const std::byte>() + source[r] / top_k * line, line);
    }
  });
}

void run_dispatch(const LaunchArgs& args) {
  const int64_t experts = args.attrs.integer("experts");
  const Tensor& idx = args.in[1];
  const int32_t* expert = idx.as<const int32_t>();
  const int64_t slots = idx.numel();
  int32_t* plan = args.out[1].as<int32_t>();
  int32_t* source = plan + experts + 1;
  int32_t* next = Carver(args).take<int32_t>(experts + 1);
  std::fill(next, next + experts + 1, 0);
  for (int64_t i = 0; i < slots; ++i) {
    MT_CHECK(expert[i] < experts, "dispatch to expert ", expert[i], " of ", experts);
    if (expert[i] >= 0) ++next[expert[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) next[e + 1] += next[e];
  std::copy(next, next + experts + 1, plan);
  const int64_t rows = plan[experts];
  MT_CHECK(args.out[0].rows() >= rows, "dispatch: ", rows, " rows for a buffer of ",
           args.out[0].rows());
  std::fill(source + rows, source + slots, -1);
  for (int64_t i = 0; i < slots; ++i) {
    if (expert[i] >= 0) source[next[expert[i]]++] = static_cast<int32_t>(i);
  }
  copy_token_rows(args.in[0], source, rows, idx.cols(), args.out[0].data, args.pool);
}

/// Row of every slot, -1 where there is none.
int32_t* rows_of_slots(const LaunchArgs& args, const Tensor& plan_tensor, int64_t slots,
                       int64_t rows_given) {
  const int64_t experts = args.attrs.integer("experts");
  const int32_t* plan = plan_tensor.as<const int32_t>();
  const int64_t rows = plan[experts];
  MT_CHECK(rows == rows_given, "a dispatch plan of ", rows, " rows for ", rows_given, " rows");
  int32_t* row_of = Carver(args).take<int32_t>(slots);
  std::fill(row_of, row_of + slots, -1);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t slot = plan[experts + 1 + r];
    MT_CHECK(slot >= 0 && slot < slots, "dispatch plan: row ", r, " comes from slot ", slot);
    row_of[slot] = static_cast<int32_t>(r);
  }
  return row_of;
}

void gather(const LaunchArgs& args, const Tensor& idx, const float* weight) {
  const int32_t* row_of = rows_of_slots(args, args.in[1], idx.numel(), args.in[0].shape[0]);
  args.pool.run_ranges(args.out[0].rows(), grain_of(args.out[0].cols()),
                       [&](int64_t begin, int64_t end, int) {
                         HWY_DYNAMIC_DISPATCH(gather_rows)
                         (args.in[0], row_of, weight, args.out[0], idx.cols(), begin, end);
                       });
}

void run_dispatch_grad(const LaunchArgs& args) { gather(args, args.in[2], nullptr); }
void run_combine(const LaunchArgs& args) { gather(args, args.in[3], args.in[2].as<const float>()); }

void run_combine_grad(const LaunchArgs& args) {
  const Tensor& idx = args.in[3];
  const int32_t* row_of = rows_of_slots(args, args.in[1], idx.numel(), args.in[4].shape[0]);
  args.pool.run_ranges(args.in[0].rows(), grain_of(args.in[0].cols()),
                       [&](int64_t begin, int64_t end, int) {
                         HWY_DYNAMIC_DISPATCH(combine_grad_tokens)
                         (args.in, args.out, row_of, idx.cols(), begin, end);
                       });
}

constexpr Kernel kRows[] = {
    {"dispatch", "dispatch.rows", &accepts_dispatch, &dispatch_workspace, &run_dispatch},
    {"dispatch_grad", "dispatch_grad.rows", &accepts_combine, &slots_workspace, &run_dispatch_grad},
    {"combine", "combine.rows", &accepts_combine, &slots_workspace, &run_combine},
    {"combine_grad", "combine_grad.rows", &accepts_combine_grad, &slots_workspace,
     &run_combine_grad},
};

}  // namespace

std::span<const Kernel> expert_kernels() { return kRows; }

}  // namespace moetrain::cpu
#endif
