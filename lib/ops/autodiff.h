// Reverse-mode differentiation of the global graph.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace moetrain {

/// Appends the backward nodes of scalar `loss` (phase kBackward, layer tag of the node they
/// differentiate, `forward` set, names "<forward name>.grad") and returns the gradient of every value
/// of `wrt` (an invalid Value where none flows). The seed is the constant one.
std::vector<Value> gradients(Graph& graph, Value loss, const std::vector<Value>& wrt);

}  // namespace moetrain
