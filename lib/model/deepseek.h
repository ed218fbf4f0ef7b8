// The model as one reads it in the paper, as a global graph of one micro-batch, with its loss and update.
#pragma once

#include <string>
#include <vector>

#include "base/stages.h"
#include "config/model.h"
#include "graph/graph.h"
#include "model/params.h"

namespace moetrain {

/// AdamW and clipping as constants of the update.
struct UpdateOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 1.0;
};

enum class GraphPurpose {
  kTrain,     ///< forward, backward, update
  kEvaluate,  ///< forward and loss sums
  kGenerate,  ///< forward and logits
};

struct GraphOptions {
  GraphPurpose purpose = GraphPurpose::kTrain;
  int64_t batch = 1;     ///< sequences of one global micro-batch: micro_batch_size x data
  int64_t sequence = 1;  ///< tokens per sequence
  DType compute = DType::kF32;
  /// Parameters and optimizer state are separate (bf16, or states spread by ZeRO): states "master:*".
  bool separate_master = false;
  double balance_alpha = 0;
  /// Values get zeros up to the width of keys before attention, which are cut off behind it: what kernels
  /// with one head width need. Changes no result.
  bool pad_value_heads = false;
  bool update_weights = true;  ///< false: gradients and loads only, weights stay
  UpdateOptions update;
  /// Names hidden states, logits, routings and gradients as outputs (debug.dump, golden cases).
  bool dump = false;
  /// Pipeline stages, and the chunk of every layer (MTP layers behind the decoder's; empty: all on chunk
  /// 0). The embedding lives on chunk 0; final norm, head, loss and MTP on the last.
  Stages stages;
  std::vector<int> chunk_of_layer;

  int chunk_of(int layer) const { return chunk_of_layer.empty() ? 0 : chunk_of_layer.at(layer); }
};

/// Names of the graph's ports (D = num_nextn_predict_layers, k = 0..D, T = compute dtype):
/// inputs per micro-batch: tokens.k, labels.k i32, valid.k f32, pos, doc_start i32, all [b, s];
///   scale.k f32 [] (1 / valid tokens of depth k in the global batch, times lambda / D for k > 0),
///   scale.balance f32 [] (1 / sequences of the global batch);
/// inputs of the update: hyper f32 [4] (see kAdamw), bias_speed f32 [];
/// states: parameters by name, master: m: v: grad: of each, sum.k f32 [] and sum.balance f32 []
///   (loss sums), load.LAYER i64 [E];
/// outputs of the update: loss_sum.k, balance, grad_norm, clip_factor, load.LAYER; dumps hidden.LAYER, ...
/// With stages: a parameter read on another stage than its own has a read copy there (copy_name) whose
/// gradient sum travels home in the update; sum.balance is kept per stage ("sum.balance.STAGE").
/// A kEvaluate graph outputs loss_sum.k after every micro-batch; kGenerate outputs logits [b, s, V] f32.
Graph build_graph(const ModelConfig& model, const GraphOptions& options);

}  // namespace moetrain
