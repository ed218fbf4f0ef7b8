// The one FLOPs count of a model: matrix products only, what tokens/s turn into TFLOP/s and MFU.
#pragma once

#include <vector>

#include "config/model.h"

namespace moetrain {

/// Floating-point operations of one training step per token at `sequence_length`: 6 x the multiply-adds
/// of a forward pass. Causal attention counts (S+1)/2 keys per query, MTP layers at S; routed experts at
/// top-k; the router is counted, recomputation, embedding look-up, norms and softmax are not.
double training_flops_per_token(const ModelConfig& model, int64_t sequence_length);
/// A token's forward pass in every decoder layer, in order, and then in all that follows the last one: MTP
/// layers and every product with the output matrix.
std::vector<double> forward_flops_of_layers(const ModelConfig& model, int64_t sequence_length);
/// The forward pass alone (a third of it).
double forward_flops_per_token(const ModelConfig& model, int64_t sequence_length);

}  // namespace moetrain
