// A launch that adds to several states overwrites them only where all of them are lazily cleared.
#include <gtest/gtest.h>

#include <vector>

#include "ops/basic.h"
#include "ops/projections.h"
#include "ops/update.h"
#include "runtime/comm/comm.h"
#include "runtime/executor.h"

namespace moetrain {
namespace {

constexpr int64_t kRows = 5;

/// Weight gradients of two products of one input, all ones: every element gains kRows a step.
class TwoSums {
 public:
  TwoSums() {
    a_ = slot("a", Home::kState, {4, 3});
    b_ = slot("b", Home::kState, {2, 3});
    const int da = slot("da", Home::kInput, {kRows, 4}), db = slot("db", Home::kInput, {kRows, 2});
    const int x = slot("x", Home::kInput, {kRows, 3});
    for (int s : {a_, b_}) plan_.states.push_back(port(s));
    for (int s : {da, db, x}) plan_.inputs.push_back(port(s));
    segment("step", ops::kProjectionsDw, {{"count", int64_t{2}}, {"accumulate", int64_t{1}}}, {da, db, x, a_, b_},
            {after(a_), after(b_)});
    segment("clear a", ops::kClear, {}, {a_}, {after(a_)});
    segment("clear b", ops::kClear, {}, {b_}, {after(b_)});
  }
  const Plan& plan() const { return plan_; }

 private:
  int slot(const char* name, Home home, Shape shape, int alias = -1) {
    Slot s;
    s.name = name;
    s.bytes = numel(shape) * static_cast<int64_t>(sizeof(float));
    s.type = {DType::kF32, std::move(shape), false};
    s.home = home;
    s.alias = alias;
    plan_.slots.push_back(s);
    return static_cast<int>(plan_.slots.size()) - 1;
  }
  int after(int state) { return slot("after", Home::kState, plan_.slots[state].type.shape, state); }
  Port port(int s) const {
    Port p;
    p.name = plan_.slots[s].name;
    p.slot = s;
    p.global = plan_.slots[s].type;
    return p;
  }
  void segment(const char* name, const OpDef& op, Attrs attrs, std::vector<int> in, std::vector<int> out) {
    Segment s;
    s.name = name;
    Instruction instruction;
    instruction.what = Launch{&op, std::move(attrs), std::move(in), std::move(out)};
    s.instructions.push_back(std::move(instruction));
    plan_.segments.push_back(std::move(s));
  }

  Plan plan_;
  int a_, b_;
};

class SeveralStates : public testing::TestWithParam<bool> {};

TEST_P(SeveralStates, AreOverwrittenTogetherOrNotAtAll) {
  const TwoSums sums;
  run_local_ranks(1, 1, [&](Fabric& fabric) {
    const auto device = make_cpu_device({2, GetParam(), false});
    Executor executor(sums.plan(), *device, fabric);
    auto put = [&](const Port& p, float value) {
      const std::vector<float> all(numel(p.global.shape), value);
      executor.write(p, all.data(), all.size() * sizeof(float));
    };
    auto expect = [&](const char* when, float a, float b) {
      for (const Port& p : sums.plan().states) {
        std::vector<float> all(numel(p.global.shape));
        executor.read(p, all.data(), all.size() * sizeof(float));
        for (float v : all) EXPECT_EQ(v, p.name == "a" ? a : b) << when << ": " << p.name;
      }
    };
    for (const Port& p : sums.plan().inputs) put(p, 1);
    for (const Port& p : sums.plan().states) put(p, 100);
    executor.run("step");
    expect("none cleared", 105, 105);
    executor.run("clear a"), executor.run("step");
    expect("the first cleared", 5, 110);
    executor.run("clear b"), executor.run("step");
    expect("the second cleared", 10, 5);
    executor.run("clear a"), executor.run("clear b"), executor.run("step");
    expect("both cleared", 5, 5);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, SeveralStates, testing::Bool());

}  // namespace
}  // namespace moetrain
