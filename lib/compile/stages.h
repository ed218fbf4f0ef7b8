// Which nodes of the global graph a pipeline stage holds, and which values cross to it and from it.
#pragma once

#include <map>
#include <vector>

#include "base/stages.h"
#include "graph/graph.h"

namespace moetrain {

/// One stage's view of the global graph. Nodes that no output, state or live node needs are left out;
/// inputs and constants stand on every stage that reads them.
struct StageView {
  enum Place : char { kAway, kHere, kCopied };
  std::vector<char> place;  ///< per node
  /// A value made here -> the stages that read it, each with its first reader.
  std::map<Value, std::map<int, int>> sent;
  /// A value made elsewhere -> its first reader here.
  std::map<Value, int> received;
  /// A copied leaf -> its first reader here.
  std::map<int, int> first_reader;
};

/// Throws InternalError when a state is read on another stage than its own.
StageView view_of_stage(const Graph& graph, const Stages& stages, int stage);

}  // namespace moetrain
