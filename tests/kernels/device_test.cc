// The CPU device keeps packed weights only as long as nothing has written to them.
#include "runtime/device/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/basic.h"
#include "ops/matmul.h"
#include "ops/update.h"
#include "runtime/device/cpu/kernels/target.h"

namespace moetrain {
namespace {

constexpr int64_t kM = 4, kN = 70, kK = 33;
const Type kX{DType::kF32, {kM, kK}, false}, kY{DType::kF32, {kM, kN}, false};
const Type kW{DType::kF32, {kN, kK}, false};

/// y = x w^T on a device that keeps w, and dx = y w.
class KeptWeight : public ::testing::Test {
 protected:
  KeptWeight() : device_(make_cpu_device({2, false, true})) {
    for (Tensor* t : {&x_, &w_, &other_, &y_, &dx_}) {
      t->data = device_->allocate(t->bytes(), "test");
      for (int64_t i = 0; i < t->numel(); ++i) t->as<float>()[i] = static_cast<float>(i % 11 - 5);
    }
    for (int64_t i = 0; i < other_.numel(); ++i) other_.as<float>()[i] = static_cast<float>(i % 7);
    forward_ = device_->choose(ops::kMatmul, {}, std::vector{kX, kW}, std::vector{kY});
    back_ = device_->choose(ops::kMatmulDx, {}, std::vector{kY, kW}, std::vector{kX});
    workspace_.resize(std::max(forward_.workspace_bytes, back_.workspace_bytes) + 64);
  }
  Lane& lane() { return device_->lane(0); }

  void launch(const KernelChoice& kernel, const OpDef& op, const std::vector<Tensor>& in,
              std::vector<Tensor> out) {
    const Attrs attrs;
    device_->launch(kernel, op, attrs, in, out, workspace_.data(), lane());
    lane().synchronize();
  }
  void launch(const OpDef& op, const std::vector<Tensor>& in, std::vector<Tensor> out) {
    std::vector<Type> types, results;
    for (const Tensor& t : in) types.push_back({t.dtype, t.shape, false});
    for (const Tensor& t : out) results.push_back({t.dtype, t.shape, false});
    launch(device_->choose(op, {}, types, results), op, in, std::move(out));
  }

  /// Whether both products are those of the weight as it stands in memory now.
  bool up_to_date() {
    launch(forward_, ops::kMatmul, {x_, w_}, {y_});
    launch(back_, ops::kMatmulDx, {y_, w_}, {dx_});
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t j = 0; j < kN; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < kK; ++p) sum += at(x_, i, p) * at(w_, j, p);
        if (sum != at(y_, i, j)) return false;  // small whole numbers: exact
      }
      for (int64_t p = 0; p < kK; ++p) {
        double sum = 0;
        for (int64_t j = 0; j < kN; ++j) sum += at(y_, i, j) * at(w_, j, p);
        if (sum != at(dx_, i, p)) return false;
      }
    }
    return true;
  }
  static double at(const Tensor& t, int64_t i, int64_t j) {
    return t.as<const float>()[i * t.shape[1] + j];
  }
  int64_t keep() { return device_->keep(forward_, {}, 1, w_, kM) + device_->keep(back_, {}, 1, w_, kM); }

  std::unique_ptr<Device> device_;
  Tensor x_{nullptr, DType::kF32, kX.shape}, w_{nullptr, DType::kF32, kW.shape},
      other_{nullptr, DType::kF32, kW.shape}, y_{nullptr, DType::kF32, kY.shape},
      dx_{nullptr, DType::kF32, kX.shape};
  KernelChoice forward_, back_;
  std::vector<std::byte> workspace_;
};

TEST_F(KeptWeight, CopiesAreUsed) {
  EXPECT_GE(keep(), 2 * w_.bytes());
  EXPECT_EQ(keep(), 0) << "kept twice";
  ASSERT_TRUE(up_to_date());
  w_.as<float>()[5] += 1;  // behind the device's back
  EXPECT_FALSE(up_to_date()) << "no copy was in use";
  device_->changed(w_.as<float>() + 5, sizeof(float));
  EXPECT_TRUE(up_to_date());
}

TEST_F(KeptWeight, SeesEveryWriter) {
  keep();
  ASSERT_TRUE(up_to_date());
  launch(ops::kAssign, {w_, other_}, {w_});
  EXPECT_EQ(w_.as<float>()[3], 3) << "nothing was written";
  EXPECT_TRUE(up_to_date()) << "after a launch";
  const std::vector<float> host(kK, 2.0f);
  device_->copy_in(w_.as<float>() + kK, host.data(), kK * sizeof(float), lane());
  EXPECT_TRUE(up_to_date()) << "after a copy from the host";
  device_->copy(w_.as<float>(), other_.as<float>() + 1, kK * sizeof(float), lane());
  EXPECT_TRUE(up_to_date()) << "after a copy inside the device";
  device_->copy_in(w_.as<float>() + kN * kK - 1, host.data(), sizeof(float), lane());
  EXPECT_TRUE(up_to_date()) << "after a write to the last element";
}

TEST_F(KeptWeight, ManyRowsOrGivenBackMemoryKeepNothing) {
  EXPECT_EQ(device_->keep(forward_, {}, 1, w_, 100000), 0);
  const int64_t bytes = keep();
  ASSERT_TRUE(up_to_date());
  std::byte* old = w_.as<std::byte>();
  device_->release(old);
  w_.data = device_->allocate(w_.bytes(), "test");  // often the same address again
  std::memset(w_.data, 0, w_.bytes());
  EXPECT_TRUE(up_to_date());
  EXPECT_EQ(keep(), bytes) << "the new weight is another one";
}

TEST(KeptWeights, OnlyWhenAsked) {
  const auto device = make_cpu_device({1, false, false});
  Tensor w{device->allocate(kW.shape[0] * kW.shape[1] * 4, "test"), DType::kF32, kW.shape};
  const KernelChoice kernel =
      device->choose(ops::kMatmul, {}, std::vector{kX, kW}, std::vector{kY});
  EXPECT_EQ(device->keep(kernel, {}, 1, w, kM), 0);
}

}  // namespace
}  // namespace moetrain
