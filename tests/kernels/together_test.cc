// Several kernels in one launch give what they give one after the other, whoever runs what.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <list>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/text.h"
#include "graph/op.h"
#include "ops/basic.h"
#include "ops/norm.h"
#include "ops/side_by_side.h"
#include "ops/swiglu.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/device.h"

namespace moetrain {
namespace {

TEST(BorrowedPool, EndsWithOrWithoutHelp) {
  ThreadPool pool(ThreadPool::Borrowed(), 3);
  std::vector<int> done(100, 0);
  pool.run(100, [&](int64_t i, int worker) {
    EXPECT_EQ(worker, 0);
    ++done[i];
  });
  for (int d : done) EXPECT_EQ(d, 1);
  pool.help(1);  // nothing in flight

  std::atomic<bool> over{false};
  std::atomic<int> helped{0};
  std::vector<std::thread> others;
  for (int w : {1, 2}) {
    others.emplace_back([&, w] {
      while (!over) pool.help(w);
    });
  }
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 300; ++round) {
    pool.run(20, [&](int64_t i, int worker) {
      sum += i;
      helped += worker != 0;
      // Until somebody has helped, the first round waits for it.
      while (round == 0 && i == 0 && helped == 0) std::this_thread::yield();
    });
  }
  over = true;
  for (std::thread& t : others) t.join();
  EXPECT_EQ(sum, 300 * 190);
  EXPECT_GT(helped, 0);
}

/// Rows of several independent ops as one launch.
class SideBySide : public testing::Test {
 protected:
  Tensor filled(DType dtype, Shape shape) {
    buffers_.emplace_back(numel(shape) * static_cast<int64_t>(size_of(dtype)));
    Tensor t{buffers_.back().data(), dtype, std::move(shape)};
    for (int64_t i = 0; i < t.numel(); ++i) {
      const double v = static_cast<double>((i * 37 + static_cast<int64_t>(buffers_.size()) * 11) % 101) / 50 - 1;
      set_element(t, i, v);
    }
    return t;
  }
  Tensor empty(const Type& type) {
    buffers_.emplace_back(numel(type.shape) * static_cast<int64_t>(size_of(type.dtype)), std::byte{0x5a});
    return {buffers_.back().data(), type.dtype, type.shape};
  }
  static Type type_of(const Tensor& t) { return {t.dtype, t.shape, false}; }

  void add(const OpDef& op, Attrs attrs, const std::vector<Tensor>& in) {
    std::vector<Type> types;
    for (const Tensor& t : in) types.push_back(type_of(t));
    const std::vector<Type> results = op.infer(attrs, types);
    parts_.push_back({&op, attrs, op.name, static_cast<int>(in.size()), static_cast<int>(results.size())});
    in_.insert(in_.end(), in.begin(), in.end());
    for (const Type& t : results) {
      out_types_.push_back(t);
      apart_.push_back(empty(t));
      together_.push_back(empty(t));
    }
  }
  void add_norm(int64_t rows, int64_t width) {
    add(ops::kRmsNorm, {{"eps", 1e-6}}, {filled(DType::kF32, {rows, width}), filled(DType::kF32, {width})});
  }
  void add_swiglu(int64_t rows, int64_t width) {
    add(ops::kSwiglu, {}, {filled(DType::kBF16, {rows, width}), filled(DType::kBF16, {rows, width})});
  }

  Attrs attrs() const {
    Attrs a;
    a.set("body", std::make_shared<const std::vector<BodyPart>>(parts_));
    return a;
  }
  std::vector<Type> in_types() const {
    std::vector<Type> types;
    for (const Tensor& t : in_) types.push_back(type_of(t));
    return types;
  }
  void run(Device& device, const Attrs& all) {
    const KernelChoice kernel = device.choose(ops::kSideBySide, all, in_types(), out_types_);
    std::vector<std::byte> workspace(kernel.workspace_bytes + 64);
    device.launch(kernel, ops::kSideBySide, all, in_, together_, workspace.data(), device.lane(0));
    device.lane(0).synchronize();
  }
  void run_apart() {
    const auto device = make_cpu_device({});
    std::span<Tensor> in(in_), out(apart_);
    for (const BodyPart& part : parts_) {
      std::vector<Type> types, results;
      for (const Tensor& t : in.first(part.inputs)) types.push_back(type_of(t));
      for (const Tensor& t : out.first(part.outputs)) results.push_back(type_of(t));
      const KernelChoice kernel = device->choose(*part.op, part.attrs, types, results);
      std::vector<std::byte> workspace(kernel.workspace_bytes + 64);
      device->launch(kernel, *part.op, part.attrs, in.first(part.inputs), out.first(part.outputs),
                     workspace.data(), device->lane(0));
      device->lane(0).synchronize();
      in = in.subspan(part.inputs);
      out = out.subspan(part.outputs);
    }
  }
  void expect_same(const std::string& what) {
    for (size_t k = 0; k < apart_.size(); ++k) {
      EXPECT_EQ(std::memcmp(apart_[k].data, together_[k].data, apart_[k].bytes()), 0) << what << ", result " << k;
      std::memset(together_[k].data, 0x5a, together_[k].bytes());
    }
  }

  std::vector<BodyPart> parts_;
  std::vector<Tensor> in_, apart_, together_;
  std::vector<Type> out_types_;
  std::list<std::vector<std::byte>> buffers_;
};

TEST_F(SideBySide, GivesTheBitsOfThePartsAlone) {
  add_norm(3, 17);
  add_norm(700, 96);
  add_swiglu(40, 33);
  add_norm(1, 8);
  add_swiglu(1, 1);
  run_apart();
  const Attrs all = attrs();
  for (int threads : {1, 2, 3, 8}) {
    const auto device = make_cpu_device({threads, false, false});
    for (int round = 0; round < 40; ++round) {
      run(*device, all);
      expect_same(cat(threads, " threads"));
    }
  }
  const auto device = make_cpu_device({2, true, false});
  run(*device, all);  // reference loops: other bits, no fault
}

TEST_F(SideBySide, MorePartsThanWorkersAndTheOtherWayRound) {
  for (int i = 0; i < 20; ++i) add_norm(1 + i % 5, 24 + i);
  run_apart();
  const Attrs all = attrs();
  for (int threads : {2, 5, 32}) {
    const auto device = make_cpu_device({threads, false, false});
    for (int round = 0; round < 20; ++round) {
      run(*device, all);
      expect_same(cat(threads, " threads"));
    }
  }
}

void fails(const Attrs&, std::span<const Tensor>, std::span<Tensor>) { throw std::runtime_error("as planned"); }
std::vector<Type> same_type(const Attrs&, std::span<const Type> in) { return {in[0]}; }

TEST_F(SideBySide, APartThatFailsIsReportedAndTheOthersEnd) {
  static const OpDef kFails{"fails", same_type, nullptr, nullptr, nullptr, fails};
  add_norm(50, 64);
  add(kFails, {}, {filled(DType::kF32, {4})});
  add_norm(50, 64);
  const Attrs all = attrs();
  for (int threads : {2, 4}) {
    for (int round = 0; round < 20; ++round) {
      const auto device = make_cpu_device({threads, false, false});  // its lane ends with the failure
      for (const Tensor& t : together_) std::memset(t.data, 0, t.bytes());
      EXPECT_THROW(run(*device, all), std::runtime_error);
      for (size_t rstd : {1, 4}) {  // rms_norm gives y and rstd
        const Tensor& t = together_[rstd];
        EXPECT_GT(get_element(t, t.numel() - 1), 0) << "result " << rstd << " was given up";
      }
    }
  }
}

}  // namespace
}  // namespace moetrain
