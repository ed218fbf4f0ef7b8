// The matrix products of training, dense and grouped, alone and several of one input, on the
// packed-panel driver.
#include <cstring>

#include "base/error.h"
#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/gemm.h"

namespace moetrain::cpu {
namespace {

using Types = std::span<const Type>;

// A product by itself has the operands of several with count = 1. Forward: x, weights, plan. Input
// gradient: dys, weights, plan. Weight gradient: dys, x, plan, accumulators. The plan is there
// where weights are [E, n, k].
int64_t count_of(const Attrs& attrs) { return attrs.integer_or("count", 1); }
bool has_act(const Attrs& attrs) { return attrs.has("act"); }
bool keeps(const Attrs& attrs) { return attrs.integer_or("keep", 1) != 0; }
bool grouped(const Shape& weight) { return weight.size() == 3; }

bool all_of_dtype(Types types, DType dtype) {
  for (const Type& t : types) {
    if (t.dtype != dtype) return false;
  }
  return true;
}
bool fast(Types operands, Types out) {
  return is_f32_or_bf16(operands[0]) && all_of_dtype(operands, operands[0].dtype) &&
         is_f32_or_bf16(out[0]) && all_of_dtype(out, out[0].dtype);
}
bool accepts_forward(const Attrs& attrs, Types in, Types out) {
  return fast(in.first(1 + count_of(attrs)), out);
}
bool accepts_dx(const Attrs& attrs, Types in, Types out) {
  return fast(in.first(2 * count_of(attrs)), out);
}
bool accepts_dw(const Attrs& attrs, Types in, Types out) {
  return fast(in.first(count_of(attrs) + 1), out) && out[0].dtype == DType::kF32;
}

/// Rows and columns of a weight, or of one expert's.
int64_t rows_in(const Shape& weight) { return weight[weight.size() - 2]; }
int64_t cols_in(const Shape& weight) { return weight.back(); }
int64_t experts_in(const Shape& weight) { return grouped(weight) ? weight[0] : 1; }

Epilogue forward_epilogue(const Attrs& attrs) {
  return has_act(attrs) ? Epilogue::kSwiglu : Epilogue::kNone;
}

size_t forward_workspace(const Attrs& attrs, Types in, Types out, int threads) {
  return gemm_workspace(out[0].dtype, cols_in(in[1].shape), threads, forward_epilogue(attrs));
}

size_t dx_workspace(const Attrs& attrs, Types in, Types out, int threads) {
  const int64_t count = count_of(attrs);
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i) k += rows_in(in[count + i].shape);
  return gemm_workspace(out[0].dtype, k, threads, Epilogue::kNone, count);
}

size_t swiglu_workspace(const Attrs&, Types in, Types out, int threads) {
  return gemm_workspace(out[0].dtype, rows_in(in[1].shape), threads, Epilogue::kSwigluGrad);
}

size_t dw_workspace(const Attrs&, Types, Types, int threads) {
  return gemm_workspace(DType::kF32, 0, threads);
}

/// What the members of a launch are made from.
struct Products {
  const LaunchArgs& args;
  int64_t count;           ///< of weights
  int64_t rows;            ///< of the operand that is not gathered
  const int32_t* offsets;  ///< the plan; null: dense
  RowSource source;        ///< of x
  bool accumulate = false;
  bool activates = false, keeps = true;

  int64_t begin(int64_t e) const { return offsets ? offsets[e] : 0; }
  int64_t rows_of(int64_t e) const { return offsets ? offsets[e + 1] - offsets[e] : rows; }
};

Products products_of(const LaunchArgs& args, int64_t rows, const Shape& weight, size_t plan) {
  Products p{args, count_of(args.attrs), rows, nullptr, {}};
  p.activates = has_act(args.attrs), p.keeps = keeps(args.attrs);
  if (!grouped(weight)) return p;
  p.offsets = args.in[plan].as<const int32_t>();
  if (args.attrs.integer_or("gather", 0) != 0)
    p.source = {p.offsets + experts_in(weight) + 1, args.attrs.integer("top_k")};
  return p;
}

std::byte* at(const Tensor& t, int64_t element) {
  return static_cast<std::byte*>(t.data) + element * static_cast<int64_t>(size_of(t.dtype));
}

/// Row `row` of an operand, or all of it where rows are gathered.
std::byte* from_row(const Tensor& t, int64_t row, const RowSource& source) {
  return source.slots ? at(t, 0) : at(t, row * t.cols());
}

void set_weight(const Products& c, size_t operand, int64_t e, Gemm& g) {
  const Tensor& w = c.args.in[operand];
  g.b = at(w, e * g.n * g.k);
  if (const float* packed = c.args.packed_copy(operand))
    g.packed_b = packed + e * packed_b_floats(g.n, g.k, w.dtype);
}

/// y[m, n] = x[m, k] w[n, k]^T.
Gemm forward_form(const Shape& w) {
  Gemm g;
  g.n = rows_in(w), g.k = cols_in(w);
  g.lda = g.ldb = g.k, g.b_transposed = true;
  g.ldc = g.n;
  return g;
}

/// dx[m, k] = dy[m, n] w[n, k]; the contraction is over n.
Gemm dx_form(const Shape& w) {
  Gemm g;
  g.n = cols_in(w), g.k = rows_in(w);
  g.lda = g.k;
  g.ldb = g.ldc = g.n;
  return g;
}

Gemm forward_member(const void* context, int64_t e, int64_t i) {
  const Products& c = *static_cast<const Products*>(context);
  const Tensor& x = c.args.in[0];
  const Shape& w = c.args.in[1 + i].shape;
  const int64_t row = c.begin(e);
  Gemm g = forward_form(w);
  g.m = c.rows_of(e);
  g.a = from_row(x, row, c.source), g.a_rows = c.source.from(row);
  set_weight(c, 1 + i, e, g);
  if (c.keeps) g.c = at(c.args.out[i], row * g.n);
  if (c.activates) g.result = at(c.args.out.back(), row * g.n);
  return g;
}

Gemm dx_member(const void* context, int64_t e, int64_t i) {
  const Products& c = *static_cast<const Products*>(context);
  const Tensor& dy = c.args.in[i];
  const int64_t row = c.begin(e);
  Gemm g = dx_form(c.args.in[c.count + i].shape);
  g.m = c.rows_of(e);
  g.a = at(dy, row * g.k);
  set_weight(c, c.count + i, e, g);
  g.c = at(c.args.out[0], row * g.n);
  return g;
}

Gemm dx_swiglu_member(const void* context, int64_t e, int64_t i) {
  const LaunchArgs& args = static_cast<const Products*>(context)->args;
  Gemm g = dx_member(context, e, i);
  const int64_t first = static_cast<const Products*>(context)->begin(e) * g.n;
  g.gate = at(args.in[2], first), g.up = at(args.in[3], first);
  g.result = at(args.out[1], first);
  return g;
}

/// dw[n, k] (+)= dy[t, n]^T x[t, k]; the contraction is over t.
Gemm dw_member(const void* context, int64_t e, int64_t i) {
  const Products& c = *static_cast<const Products*>(context);
  const Tensor &dy = c.args.in[i], &x = c.args.in[c.count];
  const int64_t row = c.begin(e);
  Gemm g;
  g.m = dy.cols(), g.n = x.cols(), g.k = c.rows_of(e);
  g.lda = g.m;
  g.ldb = g.ldc = g.n;
  g.a = at(dy, row * g.m);
  g.b = from_row(x, row, c.source), g.b_rows = c.source.from(row);
  g.c = at(c.args.out[i], e * g.m * g.n);
  g.accumulate = c.accumulate;
  return g;
}

void run_batch(const Products& c, int64_t experts, Gemm (*member)(const void*, int64_t, int64_t),
               int64_t members, Joined joined, Epilogue epilogue) {
  const LaunchArgs& args = c.args;
  run_gemm({experts, member, &c, members, joined, epilogue}, args.in[0].dtype, args.out[0].dtype,
           args.workspace, args.workspace_bytes, args.pool);
}

void run_forward(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  const int64_t count = count_of(args.attrs);
  const Products c = products_of(args, args.in[0].rows(), w, 1 + count);
  run_batch(c, experts_in(w), &forward_member, count, Joined::kColumns,
            forward_epilogue(args.attrs));
}

void run_dx(const LaunchArgs& args) {
  const int64_t count = count_of(args.attrs);
  const Shape& w = args.in[count].shape;
  const Products c = products_of(args, args.in[0].rows(), w, 2 * count);
  run_batch(c, experts_in(w), &dx_member, count, Joined::kDepth, Epilogue::kNone);
}

void run_dx_swiglu(const LaunchArgs& args) {
  const Shape& w = args.in[1].shape;
  const Products c = products_of(args, args.in[0].rows(), w, 4);
  run_batch(c, experts_in(w), &dx_swiglu_member, 1, Joined::kDepth, Epilogue::kSwigluGrad);
}

void run_dw(const LaunchArgs& args) {
  const int64_t count = count_of(args.attrs);
  const Shape& dw = args.out[0].shape;
  Products c = products_of(args, args.in[0].rows(), dw, count + 1);
  const size_t acc = count + (grouped(dw) ? 2 : 1);
  c.accumulate = args.in.size() > acc;
  for (int64_t i = 0; i < count && c.accumulate; ++i) {
    const Tensor& from = args.in[acc + i];
    if (from.data != args.out[i].data) std::memcpy(args.out[i].data, from.data, from.bytes());
  }
  run_batch(c, experts_in(dw), &dw_member, count, Joined::kRows, Epilogue::kNone);
}

// Packed weights ---------------------------------------------------------------------------------

int64_t packed_forward_floats(const Attrs& attrs, const Type& w, size_t operand) {
  if (operand < 1 || operand > static_cast<size_t>(count_of(attrs))) return 0;
  return experts_in(w.shape) * packed_b_floats(rows_in(w.shape), cols_in(w.shape), w.dtype);
}

int64_t packed_dx_floats(const Attrs& attrs, const Type& w, size_t operand) {
  const size_t count = static_cast<size_t>(count_of(attrs));
  if (operand < count || operand >= 2 * count) return 0;
  return experts_in(w.shape) * packed_b_floats(cols_in(w.shape), rows_in(w.shape), w.dtype);
}

template <Gemm (*form)(const Shape&)>
void pack_weight(const Tensor& w, float* out, ThreadPool& pool) {
  auto member = [](const void* context, int64_t e, int64_t) {
    const Tensor& weight = *static_cast<const Tensor*>(context);
    Gemm g = form(weight.shape);
    g.b = at(weight, e * g.n * g.k);
    return g;
  };
  if (w.numel() > 0) pack_b({experts_in(w.shape), member, &w}, w.dtype, out, pool);
}

constexpr Kernel kRows[] = {
    {"matmul", "matmul.packed", &accepts_forward, &forward_workspace, &run_forward,
     &packed_forward_floats, &pack_weight<&forward_form>},
    {"matmul_dx", "matmul_dx.packed", &accepts_dx, &dx_workspace, &run_dx, &packed_dx_floats,
     &pack_weight<&dx_form>},
    {"matmul_dw", "matmul_dw.packed", &accepts_dw, &dw_workspace, &run_dw},
    {"grouped_matmul", "grouped_matmul.packed", &accepts_forward, &forward_workspace, &run_forward,
     &packed_forward_floats, &pack_weight<&forward_form>},
    {"grouped_matmul_dx", "grouped_matmul_dx.packed", &accepts_dx, &dx_workspace, &run_dx,
     &packed_dx_floats, &pack_weight<&dx_form>},
    {"grouped_matmul_dw", "grouped_matmul_dw.packed", &accepts_dw, &dw_workspace, &run_dw},
    {"projections", "projections.packed", &accepts_forward, &forward_workspace, &run_forward,
     &packed_forward_floats, &pack_weight<&forward_form>},
    {"projections_dx", "projections_dx.packed", &accepts_dx, &dx_workspace, &run_dx,
     &packed_dx_floats, &pack_weight<&dx_form>},
    {"projections_dw", "projections_dw.packed", &accepts_dw, &dw_workspace, &run_dw},
    {"matmul_dx_swiglu", "matmul_dx_swiglu.packed", &accepts_dx, &swiglu_workspace, &run_dx_swiglu,
     &packed_dx_floats, &pack_weight<&dx_form>},
};

}  // namespace

std::span<const Kernel> matmul_kernels() { return kRows; }

}  // namespace moetrain::cpu
