// Leaves and bookkeeping ops: inputs, states, constants, reshape, cast, split, concatenate, sums.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

/// A tensor fed from outside at every micro-batch (phase forward) or step. attrs: dtype (short name
/// as text, as everywhere), shape, optionally ragged = 1.
extern const OpDef kInput;
/// A slot that lives from step to step (parameter, moment, accumulator). attrs: dtype, shape.
extern const OpDef kState;
/// A tensor filled with one value. attrs: value, shape, dtype.
extern const OpDef kConstant;
/// y = x under another shape (alias). attrs: shape. Dims may be merged or split in runs; the rule is
/// derived from the sizes ("bs(hx)->bshx").
extern const OpDef kReshape;
/// y = x in another dtype, rounded once. attrs: dtype. Gradient: cast back.
extern const OpDef kCast;
/// y = factor * x. attrs: factor.
extern const OpDef kScale;
/// y = a + b, in the wider dtype of the two, summed in float. Same shapes (ragged allowed). Gradient:
/// dy, rounded once to the dtype of the term.
extern const OpDef kAdd;
/// y = sum of any number of same-shaped tensors, added left to right; otherwise like add.
extern const OpDef kAddN;
/// Splits the last dim. attrs: sizes (integers). One output each. Gradient: concat.
extern const OpDef kSplit;
/// Concatenates along the last dim. Gradient: split.
extern const OpDef kConcat;

Value input(Graph& g, const std::string& name, DType dtype, Shape shape);
Value state(Graph& g, const std::string& name, DType dtype, Shape shape);
Value constant(Graph& g, double value, DType dtype, Shape shape);
Value reshape(Graph& g, Value x, Shape shape);
/// Returns x itself when it has that dtype already.
Value cast(Graph& g, Value x, DType dtype, const std::string& name = "");
Value scale(Graph& g, Value x, double factor);
Value add(Graph& g, Value a, Value b, const std::string& name = "");
Value add_n(Graph& g, const std::vector<Value>& terms, const std::string& name = "");
std::vector<Value> split(Graph& g, Value x, const std::vector<int64_t>& sizes,
                         const std::string& name = "");
Value concat(Graph& g, const std::vector<Value>& parts, const std::string& name = "");

}  // namespace moetrain::ops
