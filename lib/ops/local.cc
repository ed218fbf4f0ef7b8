// Reference loops and types of the ops that only one rank's graph contains.
#include "ops/local.h"

#include <cstring>

#include "base/error.h"
#include "ops/basic.h"
#include "ops/common.h"
#include "ops/settle.h"

namespace moetrain::ops {

namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

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

int stack_alias(const Attrs& attrs, int) { return attrs.integer_or("plain", 0) ? 0 : -1; }

}  // namespace

const OpDef kSliceBlock{"slice_block", slice_types, no_rule, nullptr, moving_cost, slice_run};
const OpDef kStack{"stack", stack_types, no_rule, nullptr, moving_cost, stack_run, stack_alias};
const OpDef kUnstack{"unstack", unstack_types, no_rule, nullptr, moving_cost, unstack_run,
                     stack_alias};
const OpDef kKeepOnFirst{"keep_on_first", same_type, no_rule, nullptr, moving_cost, keep_run};
const OpDef kPackBoxes{"pack_boxes", pack_types, no_rule, nullptr, moving_cost, pack_run};
const OpDef kUnpackBoxes{"unpack_boxes", unpack_types, no_rule, nullptr, moving_cost, unpack_run};
const OpDef kAllGather{"all_gather", all_gather_types, no_rule, nullptr, moving_cost, nullptr};
const OpDef kReduceScatter{"reduce_scatter", reduce_scatter_types, no_rule, nullptr, moving_cost,
                           nullptr};
const OpDef kAllReduce{"all_reduce", same_type, no_rule, nullptr, moving_cost, nullptr};
const OpDef kAllToAll{"all_to_all", same_type, no_rule, nullptr, moving_cost, nullptr};
const OpDef kExchange{"exchange", exchange_types, no_rule, nullptr, moving_cost, nullptr};
bool only_renames(const Node& node) {
  if (node.op == &kReshape || node.op == &kSettle) return true;
  return (node.op == &kStack || node.op == &kUnstack) && node.attrs.integer_or("plain", 0) != 0;
}

bool is_collective(const OpDef& op) {
  return &op == &kAllGather || &op == &kReduceScatter || &op == &kAllReduce ||
         &op == &kAllToAll || &op == &kExchange || &op == &kRowsAllToAll;
}

}  // namespace moetrain::ops
