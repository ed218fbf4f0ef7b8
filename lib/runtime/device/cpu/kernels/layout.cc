// Strided block copies, and the ops that are nothing but such copies: split, concat, pad,
// crop, stack, unstack.
#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/device/cpu/kernels/families.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

/// Bytes one task copies, about.
constexpr int64_t kTaskBytes = 1 << 17;
/// Blocks copied by one parallel loop.
constexpr size_t kMaxBlocks = 64;

int64_t rows_per_task(const BlockCopy& c) {
  return std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(1, c.row_bytes));
}

void copy_rows(const BlockCopy& c, int64_t begin, int64_t end) {
  const std::byte* from = static_cast<const std::byte*>(c.from) + begin * c.from_pitch;
  std::byte* to = static_cast<std::byte*>(c.to) + begin * c.to_pitch;
  if (c.from_pitch == c.row_bytes && c.to_pitch == c.row_bytes) {
    std::memcpy(to, from, (end - begin) * c.row_bytes);
    return;
  }
  for (int64_t i = begin; i < end; ++i, from += c.from_pitch, to += c.to_pitch) {
    std::memcpy(to, from, c.row_bytes);
  }
}

bool same_dtypes(const Attrs&, Types in, Types out) {
  for (const Type& t : in) {
    if (t.dtype != out[0].dtype) return false;
  }
  return true;
}

/// Collects blocks and copies them in as few parallel loops as fit.
class Blocks {
 public:
  explicit Blocks(ThreadPool& pool) : pool_(pool) {}
  ~Blocks() { flush(); }
  void add(const BlockCopy& block) {
    blocks_[count_++] = block;
    if (count_ == kMaxBlocks) flush();
  }

 private:
  void flush() {
    copy_blocks({blocks_.data(), count_}, pool_);
    count_ = 0;
  }

  ThreadPool& pool_;
  std::array<BlockCopy, kMaxBlocks> blocks_;
  size_t count_ = 0;
};

int64_t row_bytes(const Tensor& t) { return t.cols() * static_cast<int64_t>(size_of(t.dtype)); }

void run_split(const LaunchArgs& args) {
  const std::byte* from = args.in[0].as<const std::byte>();
  const int64_t pitch = row_bytes(args.in[0]);
  Blocks blocks(args.pool);
  for (const Tensor& part : args.out) {
    blocks.add({from, pitch, part.data, row_bytes(part), args.in[0].rows(), row_bytes(part)});
    from += row_bytes(part);
  }
}

void run_concat(const LaunchArgs& args) {
  std::byte* to = args.out[0].as<std::byte>();
  const int64_t pitch = row_bytes(args.out[0]);
  Blocks blocks(args.pool);
  for (const Tensor& part : args.in) {
    blocks.add({part.data, row_bytes(part), to, pitch, part.rows(), row_bytes(part)});
    to += row_bytes(part);
  }
}

/// Rows of one width to rows of another: the beginning is copied, what is new is zero.
void run_widths(const LaunchArgs& args) {
  const int64_t from = row_bytes(args.in[0]), to = row_bytes(args.out[0]),
                both = std::min(from, to);
  const int64_t rows = args.out[0].rows(), step = std::max<int64_t>(1, kTaskBytes / to);
  args.pool.run(ceil_div(rows, step), [&](int64_t task, int) {
    for (int64_t i = task * step; i < std::min(rows, (task + 1) * step); ++i) {
      std::byte* row = args.out[0].as<std::byte>() + i * to;
      std::memcpy(row, args.in[0].as<const std::byte>() + i * from, both);
      std::memset(row + both, 0, to - both);
    }
  });
}

/// Moves between a whole tensor and its blocks of dim `dim` stacked in front.
void move_stacked(const LaunchArgs& args, const Tensor& whole, const Tensor& stacked,
                  bool to_stack) {
  if (whole.data == stacked.data || whole.numel() == 0) return;
  const int64_t dim = args.attrs.integer("dim"), parts = stacked.shape[0];
  int64_t outer = 1, inner = static_cast<int64_t>(size_of(whole.dtype));
  for (int64_t i = 0; i < dim; ++i) outer *= whole.shape[i];
  for (size_t i = dim + 1; i < whole.shape.size(); ++i) inner *= whole.shape[i];
  const int64_t block = whole.shape[dim] / parts * inner;
  Blocks blocks(args.pool);
  for (int64_t p = 0; p < parts; ++p) {
    std::byte* s = stacked.as<std::byte>() + p * outer * block;
    std::byte* w = whole.as<std::byte>() + p * block;
    if (to_stack)
      blocks.add({w, parts * block, s, block, outer, block});
    else
      blocks.add({s, block, w, parts * block, outer, block});
  }
}

void run_stack(const LaunchArgs& args) { move_stacked(args, args.in[0], args.out[0], true); }
void run_unstack(const LaunchArgs& args) { move_stacked(args, args.out[0], args.in[0], false); }

constexpr Kernel kRows[] = {
    {"split", "split.copy", &same_dtypes, nullptr, &run_split},
    {"concat", "concat.copy", &same_dtypes, nullptr, &run_concat},
    {"pad", "pad.copy", &same_dtypes, nullptr, &run_widths},
    {"crop", "crop.copy", &same_dtypes, nullptr, &run_widths},
    {"stack", "stack.copy", &same_dtypes, nullptr, &run_stack},
    {"unstack", "unstack.copy", &same_dtypes, nullptr, &run_unstack},
};

}  // namespace

void copy_blocks(std::span<const BlockCopy> blocks, ThreadPool& pool) {
  int64_t tasks = 0;
  for (const BlockCopy& c : blocks) tasks += ceil_div(c.rows, rows_per_task(c));
  pool.run(tasks, [&](int64_t task, int) {
    for (const BlockCopy& c : blocks) {
      const int64_t step = rows_per_task(c), own = ceil_div(c.rows, step);
      if (task < own) {
        copy_rows(c, task * step, std::min(c.rows, (task + 1) * step));
        return;
      }
      task -= own;
    }
  });
}

std::span<const Kernel> layout_kernels() { return kRows; }

}  // namespace moetrain::cpu
