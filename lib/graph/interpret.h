// The oracle: runs a global graph node by node through the reference loops, in double if asked.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace moetrain {

/// A tensor that owns its memory.
struct HostTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;
  Tensor view() { return {bytes.data(), dtype, shape}; }
  Tensor view() const { return {const_cast<std::byte*>(bytes.data()), dtype, shape}; }
};
HostTensor make_host_tensor(DType dtype, Shape shape);

struct InterpretOptions {
  bool in_double = true;  ///< every float value is kept as f64
};

/// Runs all nodes of `graph` once, in order. `feeds` gives every kInput and kState node's content by
/// node name (any float dtype; converted). Returns the graph's named outputs, and every state's content
/// after the run under "state:NAME". Ragged values have their actual row count.
std::map<std::string, HostTensor> interpret(const Graph& graph,
                                            const std::map<std::string, HostTensor>& feeds,
                                            const InterpretOptions& options = {});

}  // namespace moetrain
