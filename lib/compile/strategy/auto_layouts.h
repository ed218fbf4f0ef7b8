// Layouts chosen by price instead of by strategy (`parallel.layouts: auto`).
#pragma once

#include <array>
#include <functional>
#include <string>

#include "compile/strategy/strategies.h"

namespace moetrain {

/// What to do with the tensor ranks in each part of the model, and with the optimizer's states. The axes
/// themselves (data, context, tensor, expert) are given.
struct AutoChoice {
  enum Part { kAttention, kMlp, kShared, kVocabulary, kParts };
  enum Use { kSplit, kTokens, kCopies };  ///< weights split | positions split | both whole
  std::array<Use, kParts> use{kSplit, kSplit, kSplit, kSplit};
  bool stream_split = true;   ///< positions between the products over tensor ranks as well
  bool experts_whole = true;  ///< experts over expert x tensor ranks; else their hidden dim over tensor
  int zero = 1;
  auto operator<=>(const AutoChoice&) const = default;
};
std::string to_string(const AutoChoice& choice);

struct LayoutPrice {
  double seconds = 0;  ///< of one optimizer step, nothing overlapped
  double bytes = 0;    ///< states and kept activations of a rank
};

struct LayoutSearch {
  LinkModel links;
  double memory_limit = 0;  ///< bytes of a rank; 0: none
  double micro_batches = 1;
  /// How often the real model has a layer of the graph (-1: what belongs to no layer). A graph with one
  /// layer of each kind is enough to choose by.
  std::function<double(int layer)> repeats;
};

/// The rows of a choice for `graph`, the user's included (those win, as always).
Rows chosen_rows(const AutoChoice& choice, const ParallelOptions& options, const Graph& graph);
/// What a choice costs: compute, redistributions and token rows, by the prices of propagation.
LayoutPrice price_of(const AutoChoice& choice, const ParallelOptions& options, const Graph& graph,
                     const LayoutSearch& search);
/// The fastest choice whose memory stays under the limit (else the one that needs least), by changing one
/// part at a time until nothing helps. Deterministic.
AutoChoice choose_layouts(const ParallelOptions& options, const Graph& graph,
                            const LayoutSearch& search);

}  // namespace moetrain
