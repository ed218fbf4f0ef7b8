// Runs one op on random operands through its CPU kernel and its reference loops, and compares.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/op.h"
#include "runtime/device/cpu/kernels/kernels.h"
#include "runtime/device/cpu/kernels/target.h"

namespace moetrain::cpu::testing {

/// How far a kernel may be from the reference: |a - b| <= relative * magnitude + rounding of the
/// output dtype, with magnitude the largest |b| of the output, or (absolute_sums) the reference of
/// the operands' absolute values at the same element: what the rounding of a sum of products is
/// proportional to.
struct Bound {
  double relative = 4e-6;
  bool absolute_sums = false;
};

/// `terms` rounded products summed in float, twice that for the pairwise bf16 instruction.
inline Bound sum_bound(int64_t terms) { return {static_cast<double>(terms + 8) * 1.2e-7, true}; }

/// One op, its attributes and its operands.
class Case {
 public:
  Case(const OpDef& op, Attrs attrs) : op_(op), attrs_(std::move(attrs)) {}

  /// Appends a float operand of normal numbers times `scale`, rounded to `dtype`.
  Case& normal(DType dtype, Shape shape, double scale = 1, double shift = 0);
  /// Appends a ragged operand: type [experts, capacity, width], tensor [rows, width].
  Case& ragged(DType dtype, int64_t experts, int64_t capacity, int64_t rows, int64_t width);
  Case& integers(Shape shape, std::vector<int32_t> values);
  Case& floats(Shape shape, std::vector<float> values);
  /// Appends output `output` of the reference of `other` as an operand of dtype `dtype`.
  Case& result_of(const Case& other, size_t output, DType dtype);
  /// Appends output `output` of the kernel of `other`.
  Case& kernel_result_of(const Case& other, size_t output);
  /// Appends operand `index` of `other`.
  Case& operand_of(const Case& other, size_t index);
  /// Actual rows of ragged outputs.
  Case& rows(int64_t rows) {
    rows_ = rows;
    return *this;
  }

  /// The op only copies bytes: its reference needs outputs of the true dtype.
  Case& copies() {
    copies_ = true;
    return *this;
  }

  /// Runs the kernel of the target in use with 1, 2 and 3 threads, and with a packed copy of its
  /// weight if it takes one: all must give the same bits, within the bound of the reference, and
  /// leave the guard bytes around outputs, workspace and copy alone.
  void check(const std::vector<Bound>& bounds) const;

  const Attrs& attrs() const { return attrs_; }
  /// Outputs of the kernel, in double.
  std::vector<std::vector<double>> kernel_values(int threads) const;
  /// Outputs of the reference, in double.
  std::vector<std::vector<double>> reference(bool absolute) const;

 private:
  struct Operand {
    Type type;
    Shape shape;
    std::vector<std::byte> data;
  };
  Tensor tensor(const Operand& operand) const;
  Operand& append(DType dtype, Shape shape);
  std::vector<Type> in_types() const;
  std::vector<std::vector<std::byte>> run(const Kernel& kernel, int threads,
                                          bool packed = false) const;
  Shape runtime_shape(const Type& type) const;

  const OpDef& op_;
  Attrs attrs_;
  std::vector<Operand> operands_;
  int64_t rows_ = 0;
  bool copies_ = false;
};

/// Test fixture: one instruction set; skipped where this build or CPU lacks it.
class EachTarget : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    before_ = current_target();
    if (!set_target(GetParam())) {
      GTEST_SKIP() << "this build or CPU has no " << moetrain::cpu::name_of(GetParam());
    }
  }
  void TearDown() override { set_target(before_); }

 private:
  Target before_ = Target::kBaseline;
};

inline std::string target_name(const ::testing::TestParamInfo<Target>& info) {
  return moetrain::cpu::name_of(info.param);
}

#define MOETRAIN_ON_EACH_TARGET(fixture)                                                      \
  INSTANTIATE_TEST_SUITE_P(Targets, fixture,                                                  \
                           ::testing::Values(Target::kBaseline, Target::kNeon, Target::kAvx2, \
                                             Target::kAvx512, Target::kAvx512Bf16),           \
                           target_name)

}  // namespace moetrain::cpu::testing
