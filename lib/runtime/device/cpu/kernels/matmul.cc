// Dense and grouped matrix products of training, forward, dX and dW, on the packed-panel driver.
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gemm.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

bool same_float(const Type& a, const Type& b) { return is_f32_or_bf16(a) && a.dtype == b.dtype; }

bool accepts_product(const Attrs&, Types in, Types out) {
  return same_float(in[0], in[1]) && is_f32_or_bf16(out[0]);
}

bool accepts_weight_gradient(const Attrs&, Types in, Types out) {
  return same_float(in[0], in[1]) && out[0].dtype == DType::kF32;
}

size_t forward_workspace(const Attrs&, Types in, Types out, int threads) {
  return gemm_workspace(out[0].dtype, in[1].shape.back(), threads);
}

size_t dx_workspace(const Attrs&, Types in, Types out, int threads) {
  const Shape& w = in[1].shape;
  return gemm_workspace(out[0].dtype, w[w.size() - 2], threads);
}

size_t dw_workspace(const Attrs&, Types, Types, int threads) {
  return gemm_workspace(DType::kF32, 0, threads);
}

/// y[m, n] = x[m, k] w[n, k]^T.
Gemm forward_gemm(int64_t m, int64_t n, int64_t k) {
  Gemm g;
  g.m = m, g.n = n, g.k = k;
  g.a_rs = k, g.a_cs = 1;
  g.ldb = k, g.b_transposed = true;
  g.ldc = n;
  return g;
}

/// dx[m, k] = dy[m, n] w[n, k]; the contraction is over n.
Gemm dx_gemm(int64_t m, int64_t n, int64_t k) {
  Gemm g;
  g.m = m, g.n = k, g.k = n;
  g.a_rs = n, g.a_cs = 1;
  g.ldb = k;
  g.ldc = k;
  return g;
}

/// dw[n, k] (+)= dy[t, n]^T x[t, k]; the contraction is over t.
Gemm dw_gemm(int64_t t, int64_t n, int64_t k, bool accumulate) {
  Gemm g;
  g.m = n, g.n = k, g.k = t;
  g.a_rs = 1, g.a_cs = n;
  g.ldb = k;
  g.ldc = k;
  g.accumulate = accumulate;
  return g;
}

void run_one(const LaunchArgs& args, Gemm g) {
  g.a = args.in[0].data;
  g.b = args.in[1].data;
  g.packed_b = args.packed;
  g.c = args.out[0].data;
  run_gemm(g, args.in[0].dtype, args.out[0].dtype, args.workspace, args.workspace_bytes, args.pool);
}

void run_matmul(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  run_one(args, forward_gemm(args.in[0].rows(), w[0], w[1]));
}

void run_matmul_dx(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  run_one(args, dx_gemm(args.in[0].rows(), w[0], w[1]));
}

/// All weights of a launch, packed for the forward product or (`dx`) for the gradient of its input.
int64_t packed_forward_floats(Types in) {
  const Shape& w = in[1].shape;
  const int64_t k = w.back(), n = w[w.size() - 2];
  return numel(w) / (n * k) * packed_b_floats(n, k, in[1].dtype);
}

int64_t packed_dx_floats(Types in) {
  const Shape& w = in[1].shape;
  const int64_t k = w.back(), n = w[w.size() - 2];
  return numel(w) / (n * k) * packed_b_floats(k, n, in[1].dtype);
}

Gemm weight_part(const void* context, int64_t e) {
  const auto& [w, dx] = *static_cast<const std::pair<const Tensor&, bool>*>(context);
  const int64_t k = w.shape.back(), n = w.shape[w.shape.size() - 2];
  Gemm g = dx ? dx_gemm(0, n, k) : forward_gemm(0, n, k);
  g.b = w.as<const std::byte>() + e * n * k * static_cast<int64_t>(size_of(w.dtype));
  return g;
}

void pack_weights(const LaunchArgs& args, bool dx, float* out) {
  const Tensor& w = args.in[1];
  const int64_t count = w.shape.size() == 3 ? w.shape[0] : 1;
  const std::pair<const Tensor&, bool> context{w, dx};
  if (w.numel() > 0) pack_b({count, &weight_part, &context}, w.dtype, out, args.pool);
}

void pack_forward(const LaunchArgs& args, float* out) { pack_weights(args, false, out); }
void pack_dx(const LaunchArgs& args, float* out) { pack_weights(args, true, out); }

/// Whether there is an accumulator (operand `index`); brings it into the output if it is not there.
bool bring_accumulator(const LaunchArgs& args, size_t index) {
  if (args.in.size() <= index) return false;
  const Tensor& acc = args.in[index];
  if (acc.data != args.out[0].data) std::memcpy(args.out[0].data, acc.data, acc.bytes());
  return true;
}

void run_matmul_dw(const LaunchArgs& args) {
  const bool accumulate = bring_accumulator(args, 2);
  run_one(args, dw_gemm(args.in[0].rows(), args.in[0].cols(), args.in[1].cols(), accumulate));
}

/// What the parts of a grouped product are made from.
struct Grouped {
  const LaunchArgs* args;
  const int32_t* offsets;
  int64_t n, k;
  bool accumulate;
  int64_t packed_floats;  ///< of one expert's weight
};

std::byte* at(const Tensor& t, int64_t element) {
  return static_cast<std::byte*>(t.data) + element * static_cast<int64_t>(size_of(t.dtype));
}

Gemm forward_part(const void* context, int64_t e) {
  const Grouped& c = *static_cast<const Grouped*>(context);
  Gemm g = forward_gemm(c.offsets[e + 1] - c.offsets[e], c.n, c.k);
  g.a = at(c.args->in[0], c.offsets[e] * c.k);
  g.b = at(c.args->in[1], e * c.n * c.k);
  if (c.args->packed) g.packed_b = c.args->packed + e * c.packed_floats;
  g.c = at(c.args->out[0], c.offsets[e] * c.n);
  return g;
}

Gemm dx_part(const void* context, int64_t e) {
  const Grouped& c = *static_cast<const Grouped*>(context);
  Gemm g = dx_gemm(c.offsets[e + 1] - c.offsets[e], c.n, c.k);
  g.a = at(c.args->in[0], c.offsets[e] * c.n);
  g.b = at(c.args->in[1], e * c.n * c.k);
  if (c.args->packed) g.packed_b = c.args->packed + e * c.packed_floats;
  g.c = at(c.args->out[0], c.offsets[e] * c.k);
  return g;
}

Gemm dw_part(const void* context, int64_t e) {
  const Grouped& c = *static_cast<const Grouped*>(context);
  Gemm g = dw_gemm(c.offsets[e + 1] - c.offsets[e], c.n, c.k, c.accumulate);
  g.a = at(c.args->in[0], c.offsets[e] * c.n);
  g.b = at(c.args->in[1], c.offsets[e] * c.k);
  g.c = at(c.args->out[0], e * c.n * c.k);
  return g;
}

void run_parts(const LaunchArgs& args, int64_t experts, int64_t n, int64_t k, bool accumulate,
               Gemm (*part)(const void*, int64_t)) {
  int64_t packed = 0;
  if (args.packed) {
    const DType dtype = args.in[1].dtype;
    packed = part == &dx_part ? packed_b_floats(k, n, dtype) : packed_b_floats(n, k, dtype);
  }
  const Grouped grouped{&args, args.in[2].as<const int32_t>(), n, k, accumulate, packed};
  run_gemm({experts, part, &grouped}, args.in[0].dtype, args.out[0].dtype, args.workspace,
           args.workspace_bytes, args.pool);
}

void run_grouped(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  run_parts(args, w[0], w[1], w[2], false, &forward_part);
}

void run_grouped_dx(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  run_parts(args, w[0], w[1], w[2], false, &dx_part);
}

void run_grouped_dw(const LaunchArgs& args) {
  const Shape& dw = args.out[0].shape;
  run_parts(args, dw[0], dw[1], dw[2], bring_accumulator(args, 3), &dw_part);
}

constexpr Kernel kRows[] = {
    {"matmul", "matmul.packed", &accepts_product, &forward_workspace, &run_matmul,
     &packed_forward_floats, &pack_forward},
    {"matmul_dx", "matmul_dx.packed", &accepts_product, &dx_workspace, &run_matmul_dx,
     &packed_dx_floats, &pack_dx},
    {"matmul_dw", "matmul_dw.packed", &accepts_weight_gradient, &dw_workspace, &run_matmul_dw},
    {"grouped_matmul", "grouped_matmul.packed", &accepts_product, &forward_workspace, &run_grouped,
     &packed_forward_floats, &pack_forward},
    {"grouped_matmul_dx", "grouped_matmul_dx.packed", &accepts_product, &dx_workspace,
     &run_grouped_dx, &packed_dx_floats, &pack_dx},
    {"grouped_matmul_dw", "grouped_matmul_dw.packed", &accepts_weight_gradient, &dw_workspace,
     &run_grouped_dw},
};

}  // namespace

std::span<const Kernel> matmul_kernels() { return kRows; }

}  // namespace moetrain::cpu
