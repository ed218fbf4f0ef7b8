// What the parts of the model share while the graph is built: parameters, inputs, options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/deepseek.h"
#include "ops/attention.h"

namespace moetrain {

/// One routed layer's by-products for loss, metrics and dumps.
struct RoutedLayer {
  int layer = 0;
  int64_t tokens_per_sequence = 0;
  Value idx, weight, load, plain, mean_score;
};

/// A read copy of a parameter on a stage that is not the parameter's own.
struct ParameterCopy {
  std::string parameter, name;
  int chunk = 0;  ///< where it is read first
  Value value;
};

class Builder {
 public:
  Builder(Graph& graph, const ModelConfig& model, const GraphOptions& options);

  Graph& g;
  const ModelConfig& m;
  const GraphOptions& options;
  const std::vector<Parameter> table;
  std::vector<RoutedLayer> routed;
  std::vector<ParameterCopy> copies;

  /// The compute copy of a parameter by its published name, as the stage of the graph's tag has it.
  Value param(const std::string& name);
  /// The chunk a parameter lives on.
  int home_chunk(const Parameter& p) const;
  int stage() const { return options.stages.stage_of(g.tag.stage); }
  Value tokens(int64_t k) const { return tokens_.at(k); }
  Value labels(int64_t k) const { return labels_.at(k); }
  Value valid(int64_t k) const { return valid_.at(k); }
  Value scale(int64_t k) const { return scales_.at(k); }
  Value pos() const { return pos_; }
  Value doc_start() const { return doc_start_; }
  Value scale_balance() const { return scale_balance_; }

  /// y = x W^T with the parameter `weight`. A wide result is float32 whatever the compute dtype: what a
  /// norm reads, and what goes into the residual stream.
  Value linear(Value x, const std::string& weight, const std::string& name);
  Value wide_linear(Value x, const std::string& weight, const std::string& name);
  Value norm(Value x, const std::string& weight, double eps, const std::string& name) {
    return norm(x, weight, eps, options.compute, name);
  }
  Value norm(Value x, const std::string& weight, double eps, DType dtype, const std::string& name);
  /// down(silu(gate x) * up x), wide.
  Value feed_forward(Value x_bsd, const std::string& prefix, const std::string& name);

  // mla.cc, moe.cc
  Value attention(Value x_bsd, int layer);
  Value experts(Value x_bsd, int layer, int64_t valid_positions);
  /// One transformer block: attention and feed-forward with their norms and residuals.
  Value block(Value x_bsd, int layer, int64_t valid_positions);

 private:
  std::map<std::string, Value> params_;
  std::vector<Value> tokens_, labels_, valid_, scales_;
  Value pos_, doc_start_, scale_balance_;
  ops::RopeTable rope_;
  double softmax_scale_ = 1;
};

/// Appends the update: gradients accumulated, norm, clip, AdamW, routing bias, loads and loss sums.
/// `balances` holds the balance loss of every stage that has one.
void build_update(Builder& builder, const std::vector<Value>& loss_sums,
                  const std::vector<Value>& balances, Value loss);

}  // namespace moetrain
