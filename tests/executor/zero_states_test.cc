// A cleared gradient sum is overwritten by what adds to it next, and really zero for everybody else.
#include "runtime/zero_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "ops/update.h"
#include "runtime/comm/comm.h"
#include "runtime/executor.h"

namespace moetrain {
namespace {

using Floats = std::vector<float>;

/// A tape by hand: a state "sum" that segment "step" adds to and "clear" clears; "norm" reads it.
class Tape {
 public:
  int slot(Home home, DType dtype, Shape shape, int alias = -1) {
    Slot s;
    s.type = {dtype, shape, false};
    s.home = home;
    s.alias = alias;
    s.bytes = numel(shape) * static_cast<int64_t>(size_of(dtype));
    plan.slots.push_back(s);
    return static_cast<int>(plan.slots.size()) - 1;
  }
  int input(const std::string& name, DType dtype, const Shape& shape) {
    const int s = slot(Home::kInput, dtype, shape);
    plan.inputs.push_back(port(name, s));
    return s;
  }
  void sum(const Shape& shape) {
    sum_slot = slot(Home::kState, DType::kF32, shape);
    plan.states.push_back(port("sum", sum_slot));
  }
  int renamed() { return slot(Home::kState, DType::kF32, plan.slots[sum_slot].type.shape, sum_slot); }
  void segment(const std::string& name, const OpDef& op, Attrs attrs, std::vector<int> in, int out) {
    Segment s;
    s.name = name;
    Instruction i;
    i.what = Launch{&op, std::move(attrs), std::move(in), {out}};
    s.instructions.push_back(i);
    plan.segments.push_back(s);
  }
  /// After step(): "clear", and "norm" with the output of that name.
  void rest() {
    segment("clear", ops::kClear, {}, {renamed()}, renamed());
    const int norm = slot(Home::kOutput, DType::kF32, {});
    plan.outputs.push_back(port("norm", norm));
    segment("norm", ops::kSumSquares, {}, {sum_slot}, norm);
  }

  Plan plan;
  int sum_slot = -1;

 private:
  Port port(const std::string& name, int s) const {
    Port p;
    p.name = name;
    p.slot = s;
    p.global = plan.slots[s].type;
    return p;
  }
};

Tape product() {
  Tape t;
  t.sum({4, 3});
  const int dy = t.input("dy", DType::kF32, {5, 4}), x = t.input("x", DType::kF32, {5, 3});
  t.segment("step", ops::kMatmulDw, {{"accumulate", int64_t{1}}}, {dy, x, t.sum_slot}, t.renamed());
  t.rest();
  return t;
}

Tape addition() {
  Tape t;
  t.sum({2, 3});
  const int x = t.input("x", DType::kF32, {2, 3});
  t.segment("step", ops::kAccumulate, {}, {t.sum_slot, x}, t.renamed());
  t.rest();
  return t;
}

Tape table() {
  Tape t;
  t.sum({6, 2});
  const int ids = t.input("ids", DType::kI32, {3}), dy = t.input("dy", DType::kF32, {3, 2});
  t.segment("step", ops::kEmbeddingGrad, {{"accumulate", int64_t{1}}, {"vocab", int64_t{6}}},
            {ids, dy, t.sum_slot}, t.renamed());
  t.rest();
  return t;
}

/// Runs `body` with an executor of the tape whose inputs are filled.
void with(const Tape& tape, bool reference, const std::function<void(Executor&)>& body) {
  run_local_ranks(1, 1, [&](Fabric& fabric) {
    CpuOptions options;
    options.threads = 2;
    options.reference = reference;
    const auto device = make_cpu_device(options);
    Executor executor(tape.plan, *device, fabric);
    for (const Port& p : tape.plan.inputs) {
      const int64_t n = numel(p.global.shape);
      std::vector<int32_t> ids(n);
      Floats values(n);
      for (int64_t i = 0; i < n; ++i) {
        ids[i] = static_cast<int32_t>(i * 2 % 5);
        values[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
      }
      const void* data = p.global.dtype == DType::kI32 ? static_cast<void*>(ids.data()) : values.data();
      executor.write(p, data, n * 4);
    }
    body(executor);
  });
}

Floats sum_of(Executor& e) {
  Floats values(numel(e.state("sum").global.shape));
  e.read(e.state("sum"), values.data(), values.size() * sizeof(float));
  return values;
}

void fill(Executor& e, float value) {
  const Floats values(numel(e.state("sum").global.shape), value);
  e.write(e.state("sum"), values.data(), values.size() * sizeof(float));
}

class Cleared : public testing::TestWithParam<std::tuple<Tape (*)(), bool>> {};

TEST_P(Cleared, OverwritingIsAddingToZero) {
  const Tape tape = std::get<0>(GetParam())();
  with(tape, std::get<1>(GetParam()), [&](Executor& e) {
    fill(e, 0);
    e.run("step");
    const Floats once = sum_of(e);
    e.run("step");
    const Floats twice = sum_of(e);
    EXPECT_NE(once, twice);
    fill(e, std::numeric_limits<float>::quiet_NaN());
    e.run("clear");
    e.run("step");
    EXPECT_EQ(sum_of(e), once);
    e.run("step");
    EXPECT_EQ(sum_of(e), twice);
    e.clear(e.state("sum"));
    e.run("step");
    EXPECT_EQ(sum_of(e), once);
  });
}

TEST_P(Cleared, OthersFindZeros) {
  const Tape tape = std::get<0>(GetParam())();
  with(tape, std::get<1>(GetParam()), [&](Executor& e) {
    const Floats zeros(numel(e.state("sum").global.shape), 0.0f);
    fill(e, 3);
    e.run("clear");
    e.run("norm");
    EXPECT_EQ(e.scalar("norm"), 0);
    fill(e, 3);
    e.run("clear");
    EXPECT_EQ(sum_of(e), zeros);
    e.run("clear");
    fill(e, 1);  // what is written after a clear stays
    e.run("norm");
    EXPECT_EQ(e.scalar("norm"), static_cast<double>(zeros.size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Tapes, Cleared,
                         testing::Combine(testing::Values(&product, &addition, &table),
                                          testing::Bool()));

/// A device that counts what is launched.
class Counting : public Device {
 public:
  explicit Counting(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  std::map<std::string, int> launched;

  std::string describe() const override { return device_->describe(); }
  std::byte* allocate(size_t bytes, const std::string& what) override {
    return device_->allocate(bytes, what);
  }
  void release(std::byte* memory) override { device_->release(memory); }
  Lane& lane(int index) override { return device_->lane(index); }
  void mark(double& seconds, Lane& lane) override { device_->mark(seconds, lane); }
  KernelChoice choose(const OpDef& op, const Attrs& attrs, std::span<const Type> in,
                      std::span<const Type> out) override {
    return device_->choose(op, attrs, in, out);
  }
  void launch(const KernelChoice& kernel, const OpDef& op, const Attrs& attrs,
              std::span<const Tensor> in, std::span<Tensor> out, std::byte* workspace,
              Lane& lane) override {
    ++launched[op.name];
    device_->launch(kernel, op, attrs, in, out, workspace, lane);
  }
  void copy_in(void* device, const void* host, size_t bytes, Lane& lane) override {
    device_->copy_in(device, host, bytes, lane);
  }
  void copy_out(void* host, const void* device, size_t bytes, Lane& lane) override {
    device_->copy_out(host, device, bytes, lane);
  }
  void copy(void* to, const void* from, size_t bytes, Lane& lane) override {
    device_->copy(to, from, bytes, lane);
  }

 private:
  std::unique_ptr<Device> device_;
};

TEST(ZeroStates, NothingIsClearedThatIsAddedToNext) {
  const Tape tape = product();
  run_local_ranks(1, 1, [&](Fabric& fabric) {
    Counting device(make_cpu_device({}));
    Executor e(tape.plan, device, fabric);
    for (int update = 0; update < 3; ++update) {
      e.run("clear");
      e.run("step");
      e.run("step");
      e.run("norm");
    }
    EXPECT_EQ(device.launched["clear"], 0);
    EXPECT_EQ(device.launched["matmul_dw"], 6);
    e.run("clear");
    e.run("norm");
    e.run("norm");
    EXPECT_EQ(device.launched["clear"], 1);
  });
}

TEST(ZeroStates, ExpertsWithoutRowsGetZeros) {
  Tape t;
  t.sum({2, 2, 2});
  // Rows are bound at run time: here by hand, as inputs of a fixed number of rows.
  const Launch launch{&ops::kGroupedMatmulDw, {{"accumulate", int64_t{1}}}, {0, 0, 0, t.sum_slot}, {0}};
  const auto overwrite = overwriting(launch, t.plan);
  ASSERT_TRUE(overwrite.has_value());
  EXPECT_EQ(overwrite->operands, 3u);
  const auto device = make_cpu_device({});
  const int32_t offsets[] = {0, 0, 1};
  const float dy[] = {2, 3}, x[] = {5, 7};
  float dw[8];
  std::fill(dw, dw + 8, std::numeric_limits<float>::quiet_NaN());
  const Type rows{DType::kF32, {2, 4, 2}, true}, plan{DType::kI32, {3}, false};
  const std::vector<Type> in_types = {rows, rows, plan}, out_types = {t.plan.slots[0].type};
  const KernelChoice kernel = device->choose(*overwrite->op, overwrite->attrs, in_types, out_types);
  const std::vector<Tensor> in = {{const_cast<float*>(dy), DType::kF32, {1, 2}},
                                  {const_cast<float*>(x), DType::kF32, {1, 2}},
                                  {const_cast<int32_t*>(offsets), DType::kI32, {3}}};
  std::vector<Tensor> out = {{dw, DType::kF32, {2, 2, 2}}};
  std::vector<std::byte> workspace(kernel.workspace_bytes);
  device->launch(kernel, *overwrite->op, overwrite->attrs, in, out, workspace.data(), device->lane(0));
  device->lane(0).synchronize();
  EXPECT_EQ(Floats(dw, dw + 8), (Floats{0, 0, 0, 0, 10, 14, 15, 21}));
}

TEST(ZeroStates, CountsAreClearedAtOnce) {
  Tape t;
  const int load = t.slot(Home::kState, DType::kI64, {4}), x = t.input("x", DType::kI64, {4});
  const Launch launch{&ops::kAccumulate, {}, {load, x}, {load}};
  EXPECT_FALSE(overwriting(launch, t.plan).has_value());
}

}  // namespace
}  // namespace moetrain
