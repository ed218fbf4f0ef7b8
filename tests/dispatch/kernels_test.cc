// The row kernels do what their reference loops do, for any number of workers.
#include "runtime/device/cpu/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/rows.h"

namespace moetrain {
namespace {

struct Buffers {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Tensor> tensors;
  void add(DType dtype, Shape shape) {
    memory.emplace_back(numel(shape) * size_of(dtype));
    tensors.push_back({memory.back().data(), dtype, std::move(shape)});
  }
};

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state >> 33;
}

/// Runs the op's kernel with `threads` workers and its reference; both results must agree bit for
/// bit.
void compare(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& in,
             const std::vector<std::pair<DType, Shape>>& results, int threads) {
  std::vector<Type> in_types, out_types;
  for (const Tensor& t : in) in_types.push_back({t.dtype, t.shape, false});
  Buffers fast, slow;
  for (const auto& [dtype, shape] : results) {
    out_types.push_back({dtype, shape, false});
    fast.add(dtype, shape);
    slow.add(dtype, shape);
  }
  const cpu::Kernel* kernel = cpu::find_kernel(op.name, attrs, in_types, out_types);
  ASSERT_NE(kernel, nullptr) << op.name;
  ThreadPool pool(threads);
  std::vector<std::byte> workspace(
      kernel->workspace ? kernel->workspace(attrs, in_types, out_types, threads) : 0);
  kernel->run({attrs, in, fast.tensors, workspace.data(), workspace.size(), pool});
  op.reference(attrs, in, slow.tensors);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(fast.memory[i], slow.memory[i]) << op.name << " result " << i << ", " << threads;
  }
}

TEST(RowKernels, CountingManySlots) {
  uint64_t seed = 3;
  for (int64_t tokens : {0, 5, 9000}) {
    Buffers in;
    in.add(DType::kI32, {1, tokens, 3});
    for (int64_t i = 0; i < tokens * 3; ++i) {
      in.tensors[0].as<int32_t>()[i] = static_cast<int32_t>(next_random(seed) % 20) - 2;
    }
    // Members hold experts 8..11, 0..3 and 12..15: 4..7 and 16, 17 belong to nobody here.
    const Attrs attrs{{"first_experts", std::vector<int64_t>{8, 0, 12}},
                      {"local_experts", int64_t{4}}};
    for (int threads : {1, 3}) {
      compare(ops::kDispatchCount, attrs, in.tensors,
              {{DType::kI32, {3 * 4 + 1 + tokens * 3}}, {DType::kI32, {3, 4}}}, threads);
    }
  }
}

TEST(RowKernels, RegroupingBothWays) {
  uint64_t seed = 9;
  for (int64_t width : {1, 700}) {
    Buffers in;
    in.add(DType::kI32, {5, 7});
    int64_t rows = 0;
    for (int i = 0; i < 35; ++i) {
      const int32_t n = i % 4 == 0 ? 0 : static_cast<int32_t>(next_random(seed) % 40);
      in.tensors[0].as<int32_t>()[i] = n;
      rows += n;
    }
    Buffers x;
    x.add(DType::kBF16, {rows, width});
    for (std::byte& b : x.memory[0]) b = static_cast<std::byte>(next_random(seed));
    for (int64_t inverse : {0, 1}) {
      for (int threads : {1, 3}) {
        compare(ops::kRegroupRows, {{"inverse", inverse}}, {x.tensors[0], in.tensors[0]},
                {{DType::kBF16, {rows, width}}}, threads);
      }
    }
  }
}

}  // namespace
}  // namespace moetrain
