// Short forms in which the strategies write their rows.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/shard/propagate.h"
#include "compile/strategy/parallel_options.h"

namespace moetrain {

using Names = std::vector<std::string>;

inline LayoutRow strategy_factors(const std::string& strategy, const std::string& pattern,
                                  const std::map<char, Names>& factors) {
  LayoutRow row;
  row.kind = LayoutRow::Kind::kFactors;
  row.pattern = pattern;
  row.factors = factors;
  row.origin = "strategy " + strategy;
  row.locked = false;
  return row;
}

inline LayoutRow strategy_state(const std::string& strategy, const std::string& pattern,
                                const std::vector<Names>& layout) {
  LayoutRow row;
  row.kind = LayoutRow::Kind::kState;
  row.pattern = pattern;
  row.out = {layout};
  row.origin = "strategy " + strategy;
  row.locked = false;
  return row;
}

/// Ops on token rows that may hold any part of the sequence (names of lib/model/README.md).
const std::vector<std::string>& sequence_ops();
/// Ops whose heads, hidden dim or vocabulary tensor parallelism splits: factor and pattern.
struct TensorOp {
  const char* pattern;
  char factor;
};
const std::vector<TensorOp>& tensor_ops();
/// The shared experts' three products.
const std::vector<TensorOp>& shared_expert_ops();
/// Does tensor parallelism split the shared experts? Not when tokens are split over tp anyway and the
/// weights are small (under 64 MiB a layer) or tp is 2: then every rank holds them whole, and no gather
/// remains around the feed-forward.
bool splits_shared_experts(const ParallelOptions& options, const Graph& graph);

}  // namespace moetrain
