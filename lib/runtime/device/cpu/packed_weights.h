// Packed copies of weights that many small products read between two updates; knows when they are
// stale.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/tensor.h"
#include "runtime/device/cpu/kernels/kernels.h"

namespace moetrain::cpu {

/// For every kept weight one copy per kernel that reads it. A copy is stale from any write into the
/// weight's memory until the next product packs it again. Used from one thread.
class PackedWeights {
 public:
  struct Copy {
    const Kernel* kernel;
    Shape shape;  ///< of the weight
    float* data;
    bool fresh;
  };

  /// Whether launches of `kernel` already keep `weight`.
  bool keeps(const Kernel& kernel, const Tensor& weight) { return find(kernel, weight) != nullptr; }
  /// Keeps `weight` for `kernel` in `data`, which holds the floats the kernel asks for and outlives
  /// this.
  void keep(const Kernel& kernel, const Tensor& weight, float* data);
  /// The copy for a launch of `kernel`, or null.
  Copy* find(const Kernel& kernel, const Tensor& weight);
  /// Something writes these bytes.
  void changed(const void* memory, size_t bytes);
  /// These bytes are given back: keeps no weight in them any more. Returns the copies' memory.
  std::vector<float*> forget(const void* memory, size_t bytes);

 private:
  struct Weight {
    size_t bytes = 0;
    std::vector<Copy> copies;
  };
  std::map<uintptr_t, Weight> weights_;  // by address; they may overlap
  size_t longest_ = 0;
};

}  // namespace moetrain::cpu
