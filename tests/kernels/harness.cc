// The comparison of kernels with reference loops.
#include "kernels/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "base/random.h"
#include "base/text.h"

namespace moetrain::cpu::testing {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

/// Memory as devices hand it out: in whole cache lines.
template <class T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const = default;
};

/// A buffer with guard bytes on both sides, filled with NaN patterns.
struct Guarded {
  std::vector<std::byte, LineAllocator<std::byte>> bytes;
  explicit Guarded(size_t n) : bytes(n + 2 * kGuard, std::byte{0xff}) {
    std::fill(bytes.begin(), bytes.begin() + kGuard, kGuardByte);
    std::fill(bytes.end() - kGuard, bytes.end(), kGuardByte);
  }
  std::byte* data() { return bytes.data() + kGuard; }
  bool intact() const {
    auto whole = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, whole) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), whole);
  }
};

double rounding_of(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF32 ? 0x1p-23 : 0.0;
}

}  // namespace

Case::Operand& Case::append(DType dtype, Shape shape) {
  const size_t bytes = static_cast<size_t>(numel(shape)) * size_of(dtype);
  operands_.push_back({{dtype, shape}, shape, std::vector<std::byte>(bytes)});
  return operands_.back();
}

Tensor Case::tensor(const Operand& o) const {
  return {const_cast<std::byte*>(o.data.data()), o.type.dtype, o.shape};
}

Case& Case::normal(DType dtype, Shape shape, double scale, double shift) {
  const CounterRandom random(7, cat(op_.name, ".", operands_.size()));
  const Tensor t = tensor(append(dtype, std::move(shape)));
  for (int64_t i = 0; i < t.numel(); ++i) set_element(t, i, shift + scale * random.normal(i));
  return *this;
}

Case& Case::ragged(DType dtype, int64_t experts, int64_t capacity, int64_t rows, int64_t width) {
  normal(dtype, {rows, width});
  operands_.back().type = {dtype, {experts, capacity, width}, true};
  return *this;
}

Case& Case::integers(Shape shape, std::vector<int32_t> values) {
  Operand& o = append(DType::kI32, std::move(shape));
  EXPECT_EQ(o.data.size(), values.size() * sizeof(int32_t));
  if (!values.empty()) std::memcpy(o.data.data(), values.data(), o.data.size());
  return *this;
}

Case& Case::floats(Shape shape, std::vector<float> values) {
  Operand& o = append(DType::kF32, std::move(shape));
  EXPECT_EQ(o.data.size(), values.size() * sizeof(float));
  std::memcpy(o.data.data(), values.data(), o.data.size());
  return *this;
}

Case& Case::result_of(const Case& other, size_t output, DType dtype) {
  const std::vector<Type> types = other.op_.infer(other.attrs_, other.in_types());
  const std::vector<double> values = other.reference(false)[output];
  Operand& o = append(dtype, other.runtime_shape(types[output]));
  o.type = types[output];
  o.type.dtype = dtype;
  const Tensor t = tensor(o);
  for (size_t i = 0; i < values.size(); ++i) set_element(t, i, values[i]);
  return *this;
}

Case& Case::kernel_result_of(const Case& other, size_t output) {
  const Type type = other.op_.infer(other.attrs_, other.in_types())[output];
  const std::vector<double> values = other.kernel_values(1)[output];
  Operand& o = append(type.dtype, other.runtime_shape(type));
  o.type = type;
  const Tensor t = tensor(o);
  for (size_t i = 0; i < values.size(); ++i) set_element(t, i, values[i]);
  return *this;
}

Case& Case::operand_of(const Case& other, size_t index) {
  operands_.push_back(other.operands_[index]);
  return *this;
}

std::vector<Type> Case::in_types() const {
  std::vector<Type> types;
  for (const Operand& o : operands_) types.push_back(o.type);
  return types;
}

Shape Case::runtime_shape(const Type& type) const {
  if (!type.ragged) return type.shape;
  Shape shape(type.shape.begin() + 1, type.shape.end());
  shape[0] = rows_;
  return shape;
}

std::vector<std::vector<double>> Case::reference(bool absolute) const {
  std::vector<Tensor> in;
  std::vector<std::vector<double>> copies;
  copies.reserve(operands_.size());
  for (const Operand& o : operands_) {
    Tensor t = tensor(o);
    if (absolute && is_float(t.dtype)) {
      copies.emplace_back(t.numel());
      for (int64_t i = 0; i < t.numel(); ++i) copies.back()[i] = std::abs(get_element(t, i));
      t = {copies.back().data(), DType::kF64, t.shape};
    }
    in.push_back(t);
  }
  std::vector<std::vector<double>> values;
  std::vector<std::vector<int64_t>> storage;
  std::vector<Tensor> out;
  const std::vector<Type> types = op_.infer(attrs_, in_types());
  values.reserve(types.size()), storage.reserve(types.size());
  for (const Type& type : types) {
    const Shape shape = runtime_shape(type);
    storage.emplace_back(numel(shape) + 1);
    const DType dtype = is_float(type.dtype) && !copies_ ? DType::kF64 : type.dtype;
    out.push_back({storage.back().data(), dtype, shape});
  }
  op_.reference(attrs_, in, out);
  for (const Tensor& t : out) {
    values.emplace_back(t.numel());
    for (int64_t i = 0; i < t.numel(); ++i) values.back()[i] = get_element(t, i);
  }
  return values;
}

std::vector<std::vector<std::byte>> Case::run(const Kernel& kernel, int threads,
                                              bool packed) const {
  const std::vector<Type> in_types = this->in_types(), out_types = op_.infer(attrs_, in_types);
  std::vector<std::vector<std::byte>> copies;
  std::vector<Tensor> in, out;
  std::vector<Guarded> buffers;
  copies.reserve(operands_.size()), buffers.reserve(out_types.size());
  for (const Operand& o : operands_) {
    copies.push_back(o.data);
    in.push_back({copies.back().data(), o.type.dtype, o.shape});
  }
  for (size_t i = 0; i < out_types.size(); ++i) {
    const Shape shape = runtime_shape(out_types[i]);
    const int shared = op_.alias ? op_.alias(attrs_, static_cast<int>(i)) : -1;
    buffers.emplace_back(numel(shape) * size_of(out_types[i].dtype));
    out.push_back({buffers.back().data(), out_types[i].dtype, shape});
    if (shared >= 0) out.back().data = in[shared].data;
  }
  Guarded workspace(kernel.workspace ? kernel.workspace(attrs_, in_types, out_types, threads) : 0);
  ThreadPool pool(threads);
  LaunchArgs args{attrs_, in, out, workspace.data(), workspace.bytes.size() - 2 * kGuard, pool};
  std::vector<Guarded> packed_copies;
  std::vector<const float*> packed_data(in.size());
  packed_copies.reserve(in.size());
  for (size_t i = 0; packed && i < in.size(); ++i) {
    const int64_t floats = kernel.packed_floats(attrs_, in_types[i], i);
    if (floats == 0) continue;
    packed_copies.emplace_back(floats * sizeof(float));
    auto* data = reinterpret_cast<float*>(packed_copies.back().data());
    kernel.pack(in[i], data, pool);
    EXPECT_TRUE(packed_copies.back().intact()) << kernel.name << " writes outside its packed weight";
    packed_data[i] = data;
    std::fill(copies[i].begin(), copies[i].end(), std::byte{0xff});
  }
  if (packed) args.packed = packed_data;
  kernel.run(args);
  EXPECT_TRUE(workspace.intact()) << kernel.name << " writes outside its workspace";
  std::vector<std::vector<std::byte>> results;
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(buffers[i].intact()) << kernel.name << " writes outside output " << i;
    results.emplace_back(out[i].as<std::byte>(), out[i].as<std::byte>() + out[i].bytes());
  }
  return results;
}

std::vector<std::vector<double>> Case::kernel_values(int threads) const {
  const std::vector<Type> in = in_types(), out = op_.infer(attrs_, in);
  const Kernel* kernel = find_kernel(op_.name, attrs_, in, out);
  EXPECT_NE(kernel, nullptr) << "no kernel for " << op_.name;
  auto results = run(*kernel, threads);
  std::vector<std::vector<double>> values;
  for (size_t o = 0; o < out.size(); ++o) {
    const Tensor t{results[o].data(), out[o].dtype, runtime_shape(out[o])};
    values.emplace_back();
    for (int64_t i = 0; i < t.numel(); ++i) values.back().push_back(get_element(t, i));
  }
  return values;
}

void Case::check(const std::vector<Bound>& bounds) const {
  const std::vector<Type> in = in_types(), out = op_.infer(attrs_, in);
  const Kernel* kernel = find_kernel(op_.name, attrs_, in, out);
  ASSERT_NE(kernel, nullptr) << "no kernel for " << op_.name;
  ASSERT_EQ(bounds.size(), out.size());
  const auto results = run(*kernel, 1);
  for (int threads : {2, 3}) {
    EXPECT_EQ(results, run(*kernel, threads))
        << kernel->name << " differs with " << threads << " threads";
  }
  if (kernel->packed_floats) {
    for (int threads : {1, 3}) {
      EXPECT_EQ(results, run(*kernel, threads, true)) << kernel->name << " differs when packed";
    }
  }
  const auto expected = reference(false);
  const bool sums =
      std::any_of(bounds.begin(), bounds.end(), [](const Bound& b) { return b.absolute_sums; });
  const auto magnitudes = sums ? reference(true) : expected;
  for (size_t o = 0; o < out.size(); ++o) {
    const Tensor got{const_cast<std::byte*>(results[o].data()), out[o].dtype,
                     runtime_shape(out[o])};
    double largest = 0, worst = 0;
    for (double v : expected[o]) {
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    }
    int64_t at = -1;
    for (int64_t i = 0; i < got.numel(); ++i) {
      const double a = get_element(got, i), b = expected[o][i];
      if (a == b) continue;
      const double magnitude = bounds[o].absolute_sums ? magnitudes[o][i] : largest;
      const double bound = bounds[o].relative * magnitude + rounding_of(out[o].dtype) * std::abs(b);
      const double excess = std::isfinite(a) && bound > 0 ? std::abs(a - b) / bound : INFINITY;
      if (excess > worst) worst = excess, at = i;
    }
    EXPECT_LE(worst, 1.0) << kernel->name << " output " << o << " element " << at << ": "
                          << (at < 0 ? 0 : get_element(got, at)) << " for "
                          << (at < 0 ? 0 : expected[o][at]) << ", largest " << largest;
  }
}

}  // namespace moetrain::cpu::testing
