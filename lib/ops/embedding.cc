// Token embedding look-up and its gradient.
#include "ops/embedding.h"

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

Shape with_width(Shape shape, int64_t width) {
  shape.push_back(width);
  return shape;
}

std::vector<Type> infer_embedding(const Attrs& attrs, Types inputs) {
  check_count("embedding", inputs.size(), 2);
  const Type &table = inputs[0], &ids = inputs[1];
  MT_CHECK(table.shape.size() == 2 && is_float(table.dtype) && ids.dtype == DType::kI32 &&
               !ids.ragged,
           "embedding: table ", to_string(table), ", ids ", to_string(ids));
  return {{dtype_attr(attrs, table.dtype), with_width(ids.shape, table.shape[1])}};
}

std::string rule_embedding(const Attrs&, Types inputs) {
  const std::string lead = lead_letters(inputs[1].shape.size());
  return "vd," + lead + "->" + lead + "d; local v";
}

std::vector<Value> vjp_embedding(Graph& graph, int node, std::span<const Value> dy) {
  const Value table = graph.nodes[node].inputs[0], ids = graph.nodes[node].inputs[1];
  const int64_t vocab = graph.type(table).shape[0];
  return {graph.add(kEmbeddingGrad, {ids, dy[0]}, {{"vocab", vocab}}, "grad"), {}};
}

// Only the rows that are looked up travel, not the table.
Cost cost_embedding(const Attrs&, Types inputs, Types outputs) {
  const double moved = static_cast<double>(elements(outputs[0]));
  return {0, moved,
          moved * size_of(inputs[0].dtype) + bytes_of(inputs.subspan(1)) + bytes_of(outputs)};
}

void reference_embedding(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t begin = attrs.integer_or("vocab_begin", 0);
  const int64_t vocab = inputs[0].shape[0], width = inputs[0].shape[1];
  const std::vector<int64_t> ids = load_integers(inputs[1]);
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = ids[t] - begin;
    const bool here = row >= 0 && row < vocab;
    for (int64_t c = 0; c < width; ++c) {
      set_element(outputs[0], static_cast<int64_t>(t) * width + c,
                  here ? get_element(inputs[0], row * width + c) : 0.0);
    }
  }
}

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  const bool accumulate = attrs.integer_or("accumulate", 0) != 0;
  check_count("embedding_grad (a third operand needs attribute accumulate=1)", inputs.size(),
              accumulate ? 3 : 2);
  const Type &ids = inputs[0], &dy = inputs[1];
  MT_CHECK(ids.dtype == DType::kI32 && is_float(dy.dtype) && !dy.shape.empty() &&
               with_width(ids.shape, dy.shape.back()) == dy.shape,
           "embedding_grad: ids ", to_string(ids), ", dy ", to_string(dy));
  const Type table{DType::kF32, {attrs.integer("vocab"), dy.shape.back()}};
  if (accumulate) {
    MT_CHECK(inputs[2] == table, "embedding_grad: acc ", to_string(inputs[2]), " for ",
             to_string(table));
  }
  return {table};
}

// The form with `acc` is made on local graphs, after partition (see matmul_dw).
std::string rule_grad(const Attrs&, Types inputs) {
  const std::string lead = lead_letters(inputs[0].shape.size());
  if (inputs.size() == 3) return lead + "," + lead + "d,vd->vd; local v; whole " + lead;
  return lead + "," + lead + "d->vd; local v; linear 1";
}

Cost cost_grad(const Attrs&, Types inputs, Types outputs) {
  return streaming_cost(inputs, outputs, 1);
}

void reference_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const int64_t begin = attrs.integer_or("vocab_begin", 0);
  const int64_t vocab = outputs[0].shape[0], width = outputs[0].shape[1];
  const std::vector<int64_t> ids = load_integers(inputs[0]);
  std::vector<double> grad =
      inputs.size() == 3 ? load(inputs[2]) : std::vector<double>(vocab * width, 0.0);
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = ids[t] - begin;
    if (row < 0 || row >= vocab) continue;
    for (int64_t c = 0; c < width; ++c) {
      grad[row * width + c] += get_element(inputs[1], static_cast<int64_t>(t) * width + c);
    }
  }
  store(grad, outputs[0]);
}

int alias_grad(const Attrs& attrs, int) { return attrs.integer_or("accumulate", 0) ? 2 : -1; }

}  // namespace

constinit const OpDef kEmbedding = {"embedding",   infer_embedding, rule_embedding,
                                    vjp_embedding, cost_embedding,  reference_embedding};
constinit const OpDef kEmbeddingGrad = {"embedding_grad", infer_grad,     rule_grad, nullptr,
                                        cost_grad,        reference_grad, alias_grad};

Value embedding(Graph& g, Value table, Value ids, DType dtype, const std::string& name) {
  return g.add(kEmbedding, {table, ids}, {{"dtype", dtype_value(dtype)}}, name);
}

}  // namespace moetrain::ops
