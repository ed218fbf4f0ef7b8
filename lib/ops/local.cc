// Reference loops and types of the ops that only one rank's graph contains.
#include "ops/local.h"

#include <cstring>

#include "base/error.h"

namespace moetrain::ops {

namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

std::string no_rule(const Attrs&, Types) { return ""; }

Cost copy_cost(const Attrs&, Types in, Types out) {
  double bytes = 0;
  for (const Type& t : in) bytes += static_cast<double>(numel(t.shape)) * size_of(t.dtype);
  for (const Type& t : out) bytes += static_cast<double>(numel(t.shape)) * size_of(t.dtype);
  return {0, 0, bytes};
}

std::vector<Type> same_type(const Attrs&, Types in) { return {in[0]}; }

/// Elements before and after dim `dim`.
struct Around {
  int64_t outer = 1, inner = 1;
};
Around around(const Shape& shape, int64_t dim) {
  Around a;
  for (int64_t i = 0; i < dim; ++i) a.outer *= shape[i];
  for (size_t i = dim + 1; i < shape.size(); ++i) a.inner *= shape[i];
  return a;
}

// slice_block ------------------------------------------------------------------------------------

std::vector<Type> slice_types(const Attrs& attrs, Types in) {
  Type out = in[0];
  const int64_t dim = attrs.integer("dim"), parts = attrs.integer("parts");
  MT_CHECK(out.shape[dim] % parts == 0, "slice_block of ", to_string(out));
  out.shape[dim] /= parts;
  return {out};
}

void slice_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t dim = attrs.integer("dim"), index = attrs.integer("index");
  const Around a = around(in[0].shape, dim);
  const int64_t block = out[0].shape[dim] * a.inner * size_of(in[0].dtype);
  const int64_t stride = in[0].shape[dim] * a.inner * size_of(in[0].dtype);
  for (int64_t i = 0; i < a.outer; ++i) {
    std::memcpy(out[0].as<char>() + i * block, in[0].as<char>() + i * stride + index * block,
                block);
  }
}

// stack, unstack ---------------------------------------------------------------------------------

std::vector<Type> stack_types(const Attrs& attrs, Types in) {
  const int64_t dim = attrs.integer("dim"), parts = attrs.integer("parts");
  Type out = in[0];
  MT_CHECK(out.shape[dim] % parts == 0, "stack of ", to_string(out));
  out.shape[dim] /= parts;
  out.shape.insert(out.shape.begin(), parts);
  return {out};
}

std::vector<Type> unstack_types(const Attrs& attrs, Types in) {
  const int64_t dim = attrs.integer("dim");
  Type out = in[0];
  const int64_t parts = out.shape[0];
  out.shape.erase(out.shape.begin());
  out.shape[dim] *= parts;
  return {out};
}

void move_blocks(const Tensor& whole, const Tensor& stacked, int64_t dim, bool to_stack) {
  const Around a = around(whole.shape, dim);
  const int64_t parts = stacked.shape[0];
  const int64_t block = whole.shape[dim] / parts * a.inner * size_of(whole.dtype);
  for (int64_t p = 0; p < parts; ++p) {
    for (int64_t o = 0; o < a.outer; ++o) {
      char* s = stacked.as<char>() + (p * a.outer + o) * block;
      char* w = whole.as<char>() + (o * parts + p) * block;
      std::memcpy(to_stack ? s : w, to_stack ? w : s, block);
    }
  }
}

void stack_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  move_blocks(in[0], out[0], attrs.integer("dim"), true);
}
void unstack_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  move_blocks(out[0], in[0], attrs.integer("dim"), false);
}

void keep_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  if (attrs.integer("keep")) {
    std::memcpy(out[0].data, in[0].data, in[0].bytes());
  } else {
    std::memset(out[0].data, 0, out[0].bytes());
  }
}

// boxes ------------------------------------------------------------------------------------------

int64_t boxes_elements(const std::vector<int64_t>& boxes, size_t rank) {
  int64_t total = 0;
  for (size_t i = 0; i < boxes.size(); i += 2 * rank) {
    int64_t n = 1;
    for (size_t d = 0; d < rank; ++d) n *= boxes[i + rank + d];
    total += n;
  }
  return total;
}

/// Copies between the boxes of `whole` and the flat buffer, in order.
void copy_boxes(const Tensor& whole, char* flat, const std::vector<int64_t>& boxes, bool pack) {
  const size_t rank = whole.shape.size();
  const int64_t size = size_of(whole.dtype);
  if (rank == 0) {
    std::memcpy(pack ? flat : whole.as<char>(), pack ? whole.as<char>() : flat, size);
    return;
  }
  for (size_t at = 0; at < boxes.size(); at += 2 * rank) {
    const int64_t* begin = &boxes[at];
    const int64_t* extent = &boxes[at + rank];
    const int64_t line = extent[rank - 1] * size;
    int64_t lines = 1;
    for (size_t d = 0; d + 1 < rank; ++d) lines *= extent[d];
    for (int64_t l = 0; l < lines; ++l) {
      int64_t rest = l, offset = begin[rank - 1], stride = whole.shape[rank - 1];
      for (size_t d = rank - 1; d-- > 0;) {
        offset += (begin[d] + rest % extent[d]) * stride;
        rest /= extent[d];
        stride *= whole.shape[d];
      }
      char* w = whole.as<char>() + offset * size;
      std::memcpy(pack ? flat : w, pack ? w : flat, line);
      flat += line;
    }
  }
}

std::vector<Type> pack_types(const Attrs& attrs, Types in) {
  const int64_t elements = boxes_elements(attrs.integers("boxes"), in[0].shape.size());
  return {{DType::kU8, {elements * static_cast<int64_t>(size_of(in[0].dtype))}, false}};
}
void pack_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  copy_boxes(in[0], out[0].as<char>(), attrs.integers("boxes"), true);
}
std::vector<Type> unpack_types(const Attrs& attrs, Types) {
  return {{static_cast<DType>(attrs.integer("dtype")), attrs.integers("shape"), false}};
}
void unpack_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  copy_boxes(out[0], in[0].as<char>(), attrs.integers("boxes"), false);
}

// collectives ------------------------------------------------------------------------------------

std::vector<Type> all_gather_types(const Attrs& attrs, Types in) {
  Type out = in[0];
  out.shape.insert(out.shape.begin(), attrs.integer("members"));
  return {out};
}
std::vector<Type> reduce_scatter_types(const Attrs&, Types in) {
  Type out = in[0];
  out.shape.erase(out.shape.begin());
  return {out};
}
std::vector<Type> exchange_types(const Attrs& attrs, Types) {
  int64_t bytes = 0;
  for (int64_t b : attrs.integers("recv_bytes")) bytes += b;
  return {{DType::kU8, {bytes}, false}};
}

// token rows -------------------------------------------------------------------------------------

std::vector<Type> dispatch_count_types(const Attrs& attrs, Types in) {
  const int64_t members = static_cast<int64_t>(attrs.integers("first_experts").size());
  const int64_t local = attrs.integer("local_experts");
  return {{DType::kI32, {members * local + 1 + numel(in[0].shape)}, false},
          {DType::kI32, {members, local}, false}};
}

void dispatch_count_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const auto& first = attrs.integers("first_experts");
  const int64_t local = attrs.integer("local_experts"), bins = first.size() * local;
  const int32_t* idx = in[0].as<const int32_t>();
  const int64_t slots = in[0].numel();
  int32_t* offsets = out[0].as<int32_t>();
  int32_t* perm = offsets + bins + 1;
  int32_t* counts = out[1].as<int32_t>();
  auto bin_of = [&](int32_t expert) -> int64_t {
    for (size_t m = 0; m < first.size(); ++m) {
      if (expert >= first[m] && expert < first[m] + local) return m * local + expert - first[m];
    }
    return -1;
  };
  std::memset(counts, 0, bins * sizeof(int32_t));
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t bin = idx[i] < 0 ? -1 : bin_of(idx[i]);
    if (bin >= 0) ++counts[bin];
  }
  offsets[0] = 0;
  for (int64_t b = 0; b < bins; ++b) offsets[b + 1] = offsets[b] + counts[b];
  std::vector<int32_t> next(offsets, offsets + bins);
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t bin = idx[i] < 0 ? -1 : bin_of(idx[i]);
    if (bin >= 0) perm[next[bin]++] = static_cast<int32_t>(i);
  }
}

std::vector<Type> row_offsets_types(const Attrs&, Types in) {
  return {{DType::kI32, {in[0].shape[1] + 1}, false}};
}
void row_offsets_run(const Attrs&, Tensors in, std::span<Tensor> out) {
  const int64_t members = in[0].shape[0], experts = in[0].shape[1];
  const int32_t* counts = in[0].as<const int32_t>();
  int32_t* offsets = out[0].as<int32_t>();
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int32_t rows = 0;
    for (int64_t m = 0; m < members; ++m) rows += counts[m * experts + e];
    offsets[e + 1] = offsets[e] + rows;
  }
}

std::vector<Type> bind_types(const Attrs&, Types in) {
  return {{DType::kI32, {static_cast<int64_t>(in.size())}, false}};
}

std::vector<Type> gather_rows_types(const Attrs& attrs, Types in) {
  return {{in[0].dtype,
           {attrs.integer("experts"), attrs.integer("capacity"), in[0].shape.back()},
           true}};
}
void gather_rows_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t experts = attrs.integer("experts");
  const int32_t* plan = in[1].as<const int32_t>();
  const int64_t rows = plan[experts], line = in[0].cols() * size_of(in[0].dtype);
  const int64_t per_token = (in[1].numel() - experts - 1) / in[0].rows();
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out[0].as<char>() + r * line,
                in[0].as<char>() + plan[experts + 1 + r] / per_token * line, line);
  }
}

std::vector<Type> moved_rows_types(const Attrs& attrs, Types in) {
  Type out = in[0];
  out.shape[0] = attrs.integer("experts");
  out.shape[1] = attrs.integer("capacity");
  return {out};
}

void regroup_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t members = in[1].shape[0], experts = in[1].shape[1];
  const int32_t* counts = in[1].as<const int32_t>();
  const bool inverse = attrs.integer("inverse") != 0;
  const int64_t line =
      in[0].shape.empty() || in[0].shape[0] == 0 ? 0 : in[0].bytes() / in[0].shape[0];
  int64_t expert_row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t source_row = 0;
    for (int64_t m = 0; m < members; ++m) {
      for (int64_t k = 0; k < e; ++k) source_row += counts[m * experts + k];
      const int64_t rows = counts[m * experts + e];
      const int64_t from = inverse ? expert_row : source_row;
      const int64_t to = inverse ? source_row : expert_row;
      if (rows > 0) {
        std::memcpy(out[0].as<char>() + to * line, in[0].as<char>() + from * line, rows * line);
      }
      for (int64_t k = e; k < experts; ++k) source_row += counts[m * experts + k];
      expert_row += rows;
    }
  }
}

int stack_alias(const Attrs& attrs, int) { return attrs.integer_or("plain", 0) ? 0 : -1; }

}  // namespace

const OpDef kSliceBlock{"slice_block", slice_types, no_rule, nullptr, copy_cost, slice_run};
const OpDef kStack{"stack", stack_types, no_rule, nullptr, copy_cost, stack_run, stack_alias};
const OpDef kUnstack{"unstack", unstack_types, no_rule, nullptr, copy_cost, unstack_run,
                     stack_alias};
const OpDef kKeepOnFirst{"keep_on_first", same_type, no_rule, nullptr, copy_cost, keep_run};
const OpDef kPackBoxes{"pack_boxes", pack_types, no_rule, nullptr, copy_cost, pack_run};
const OpDef kUnpackBoxes{"unpack_boxes", unpack_types, no_rule, nullptr, copy_cost, unpack_run};
const OpDef kAllGather{"all_gather", all_gather_types, no_rule, nullptr, copy_cost, nullptr};
const OpDef kReduceScatter{"reduce_scatter", reduce_scatter_types, no_rule, nullptr, copy_cost,
                           nullptr};
const OpDef kAllReduce{"all_reduce", same_type, no_rule, nullptr, copy_cost, nullptr};
const OpDef kAllToAll{"all_to_all", same_type, no_rule, nullptr, copy_cost, nullptr};
const OpDef kExchange{"exchange", exchange_types, no_rule, nullptr, copy_cost, nullptr};
const OpDef kDispatchCount{"dispatch_count", dispatch_count_types, no_rule, nullptr, copy_cost,
                           dispatch_count_run};
const OpDef kRowOffsets{"row_offsets", row_offsets_types, no_rule, nullptr, copy_cost,
                        row_offsets_run};
const OpDef kBind{"bind", bind_types, no_rule, nullptr, copy_cost, nullptr};
const OpDef kGatherRows{"gather_rows", gather_rows_types, no_rule, nullptr, copy_cost,
                        gather_rows_run};
const OpDef kRowsAllToAll{"rows_all_to_all", moved_rows_types, no_rule, nullptr, copy_cost,
                          nullptr};
const OpDef kRegroupRows{"regroup_rows", moved_rows_types, no_rule, nullptr, copy_cost,
                         regroup_run};

bool is_collective(const OpDef& op) {
  return &op == &kAllGather || &op == &kReduceScatter || &op == &kAllReduce ||
         &op == &kAllToAll || &op == &kExchange || &op == &kRowsAllToAll;
}

}  // namespace moetrain::ops
